"""Compiled functions over null GPUs: separate kernels run while a thread compiles the fused one, which is then used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if not (find_spec("cuda") and find_spec("nvidia") and shutil.which("gcc")):
    pytest.skip("NVRTC or gcc is not installed", allow_module_level=True)

import null_gpu

PROGRAM = """
import threading
import flambeau as torch
from flambeau.driver.cuda.device.compiler import Compiler
from flambeau.driver.cuda.driver import CudaDriver

loaded = []
load = CudaDriver.load
def logged(self, launch, index):
    exe = load(self, launch, index)
    loaded.append(launch.kernel.name)
    return exe
CudaDriver.load = logged
held, wait = Compiler.cubin, threading.Event()
def cubin(self, source):
    if "compute_all" in source:
        assert wait.wait(60)
        if {refuse}:
            return held(self, "no C++")
    return held(self, source)
Compiler.cubin = cubin

def chain(x):
    return ((x * 2 + 1).abs() - x).sqrt()

def fused():
    return [name for name in loaded if name.startswith("fused")]

x = torch.randn(3, 50, device="cuda")
want = chain(x)
compiled = torch.compile(chain)
assert torch.equal(compiled(x), want) and not fused()
assert torch.equal(compiled(x), want) and not fused()
wait.set()
for thread in threading.enumerate():
    if thread.name == "flambeau-compilation":
        thread.join()
assert torch.equal(compiled(x), want)
y = torch.randn(7, 9, 4, device="cuda")
assert torch.equal(compiled(y), chain(y))
running = [t for t in threading.enumerate() if t.name == "flambeau-compilation"]
assert torch.equal(torch.compile(lambda x: chain(x).sum())(y), chain(y).sum())
w = x.clone().requires_grad_()
compiled(w).sum().backward()
print(fused(), len(running))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("null")
    null_gpu.build(folder)
    (installed,) = [path for path in map(Path, sys.path) if any(path.glob("nvidia/*/lib/libnvrtc.so.*"))]
    return null_gpu.environment(
        folder,
        installed,
        {"FLAMBEAU_FUSE_FROM": "0", "FLAMBEAU_KERNEL_CACHE": "0", "FLAMBEAU_LOGS": "fusion"},
    )


@pytest.mark.parametrize("refuse", [False, True])
def test_fused_kernel_replaces_separate_ones(environment: dict[str, str], refuse: bool) -> None:
    program = PROGRAM.replace("{refuse}", str(refuse))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names, compiling = done.stdout.rsplit(" ", 1)
    assert compiling == "0\n"  # the second shape compiled nothing
    if refuse:
        assert names == "[]"
        assert "NVRTC could not compile a kernel" in done.stderr
    else:
        assert names.startswith("['fused(mul, add, abs, sub, sqrt)'")
        assert "compute_all(i64 i" in done.stderr


END = """
import atexit, threading
import flambeau as torch

def compiling():
    return [t.name for t in threading.enumerate() if t.name == "flambeau-compilation"]

torch.compile(lambda x: (x * 2 + 1).abs())(torch.randn(5, device="cuda"))
print(compiling())
atexit._run_exitfuncs()
print(compiling())
"""


def test_program_ends_after_the_thread_that_compiles(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", END], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["['flambeau-compilation']", "[]"]
