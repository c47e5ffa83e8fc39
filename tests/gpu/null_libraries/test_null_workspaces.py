"""What launches work with, and what cuDNN is told of them, over libraries that do nothing: no GPU needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
LIBRARIES = {
    "null_cuda.c": "libcuda.so.1", "null_cudnn.c": "libcudnn.so.9", "null_cublaslt.c": "libcublasLt.so.13",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or not find_spec("cuda"):
        pytest.skip("gcc or cuda-bindings is not installed")
    made = tmp_path_factory.mktemp("null")
    for source, name in LIBRARIES.items():
        options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-ldl"]
        subprocess.run(["gcc", "-o", made / name, HERE / source, *options], check=True)
    return made


def run(folder: Path, program: str) -> list[str]:
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(folder), "FLAMBEAU_DRIVER": "cuda", "NULL_CUDNN_WORK": "4096",
        "PYTHONPATH": str(HERE.parents[1] / "src"), "FLAMBEAU_KERNEL_CACHE": str(folder / "kernels"),
    }  # fmt: skip
    load = f"import ctypes\nfor name in {[*LIBRARIES.values()]}: ctypes.CDLL(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", load + program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


KIT = """
from flambeau.driver.cuda.driver import CudaDriver
driver = CudaDriver()
device = driver._contexts.devices[0]
handle = driver.stream_create(0, 0)
stream, default = driver._streams.queues[handle].native, driver._streams.queues[1].native
start = driver.mem_info(0)[0]
used = lambda: start - driver.mem_info(0)[0]
"""


def test_a_stream_keeps_what_its_launches_gave_back(folder: Path) -> None:
    program = """
a, b = device.take(100, stream), device.take(50, stream)
device.give(b, stream); device.give(a, stream)
print([device.take(80, stream), device.take(50, stream)] == [a, b], used())
c = device.take(10, default)  # nobody knows when the other stream is done
print(c in (a, b), used())
device.give(b, stream); device.give(a, stream); device.give(c, default)
d = device.take(300, stream)  # in the place of what is too small
print(used())
device.give(d, stream)
device.pool.trim()
print(used())
"""
    assert run(folder, KIT + program) == ["True", "150", "False", "160", "360", "0"]


def test_few_and_large_blocks_go_back(folder: Path) -> None:
    program = """
taken = [device.take(10, stream) for _ in range(6)]
for ptr in taken: device.give(ptr, stream)
print(used())
large = device.take(1 << 28, stream)
print(used() - (1 << 28))
device.give(large, stream)
print(used())
driver.stream_destroy(handle)
print(used())
"""
    assert run(folder, KIT + program) == ["40", "40", "40", "0"]


def test_a_capture_has_workspaces_of_its_own(folder: Path) -> None:
    program = """
a = device.take(100, stream)
device.give(a, stream)
driver.capture_begin(handle, "relaxed")
b = device.take(100, stream)
print(b != a, used())
device.give(b, stream)
print(used())
"""
    assert run(folder, KIT + program) == ["True", "200", "100"]


def test_scratch_that_was_outgrown_stays_until_its_stream_goes(folder: Path) -> None:
    """Another thread's launch may have been given it, and be queued after the larger one's."""
    program = """
small = device.scratch_of(handle, 100, stream)
large = device.scratch_of(handle, 3 << 20, stream)
print(large != small, device.scratch_of(handle, 100, stream) == large, used() >> 20)
driver.stream_destroy(handle)
print(used())
"""
    assert run(folder, KIT + program) == ["True", "True", "4", "0"]


def test_two_threads_that_ask_for_a_librarys_workspace_get_one(folder: Path) -> None:
    program = """
take, others = device.take, []
def taken(nbytes, native):
    device.take = take
    others.append(device.workspace_of(handle, nbytes, native))  # the other thread, just now
    return take(nbytes, native)
device.take = taken
print(device.workspace_of(handle, 100, stream) is others[0])
driver.stream_destroy(handle)
print(used())
"""
    assert run(folder, KIT + program) == ["True", "0"]


STEP = """
import flambeau as m
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
net = m.nn.Sequential(m.nn.Conv2d(3, 4, 3), m.nn.BatchNorm2d(4), m.nn.ReLU(), m.nn.Flatten(), m.nn.Linear(400, 5))
net.to("cuda")
x, y = m.ones(2, 3, 12, 12, device="cuda"), m.zeros(2, dtype=m.int64, device="cuda")
dnn, blas = ctypes.CDLL("libcudnn.so.9"), ctypes.CDLL("libcublasLt.so.13")
count = lambda: (ctypes.c_int.in_dll(dnn, "null_executions").value, ctypes.c_int.in_dll(blas, "null_products").value)
described = lambda: ctypes.c_int.in_dll(dnn, "null_descriptors").value
device_dnn = lambda: x.memory.context.backing._contexts.devices[0].libraries["cudnn"]
def step():
    net.zero_grad()
    m.nn.functional.cross_entropy(net(x), y).backward()
for _ in range(12):
    step()
(runs, products), made = count(), described()
for _ in range(6):
    step()
print(count()[0] - runs, count()[1] - products, described() - made)
from flambeau.driver.cuda.libraries import cudnn
cudnn._MOST_ARGUMENTS = 1
found = device_dnn()
found._forget_arguments()
plans = described()
x = m.ones(2, 3, 12, 12, device="cuda")
for _ in range(6):
    step()
print(described() - plans)
"""


def test_a_steady_step_describes_nothing_anew_to_cudnn(folder: Path) -> None:
    """A convolution's weight gradient and a product a step: the rest is small, and kernels of ours."""
    assert run(folder, STEP) == ["6", "6", "0", "1"]
