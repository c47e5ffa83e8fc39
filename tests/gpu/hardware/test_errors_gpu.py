"""Errors of kernels, and the ends of processes, on a real GPU: each program runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_kit import alone, needs_gpu, path_with_src

pytestmark = needs_gpu


def run(
    tmp_path: Path, program: str, quiet: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program from a file, so that messages can name its lines."""
    script = tmp_path / "program.py"
    script.write_text("import flambeau as torch\n" + program)
    done = subprocess.run(
        [sys.executable, script.name], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={**os.environ, "FLAMBEAU_DRIVER": "cuda", "PYTHONPATH": path_with_src(), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (quiet and done.stderr), done.stderr[
        -3000:
    ]  # nothing of ours complains while the process ends
    return done


BAD_INDEX = """
x = torch.arange(10, device="cuda")
bad = torch.tensor([3, 12], device="cuda")
for i in range(5):
    x[bad - 9 - int(i < 2)]
torch.cuda.synchronize()
x[bad]  # line 8
y = x + 1
try:
    {wait}
except RuntimeError as error:
    print(error)
for later in (lambda: x + 1, lambda: x.cpu(), torch.cuda.synchronize, lambda: torch.ones(3, device="cuda").tolist()):
    try:
        later()
        print("went on")
    except RuntimeError as error:
        print("device-side assert triggered" in str(error))
print(torch.ones(3).sum().item())
"""


@pytest.mark.parametrize("wait", ["torch.cuda.synchronize()", "y.tolist()", "torch.cuda.current_stream().synchronize()",
                                  "print(torch.cuda.current_stream().query() or torch.cuda.synchronize())"])  # fmt: skip
def test_an_index_out_of_range_comes_back_with_the_line_that_launched_it(tmp_path: Path, wait: str) -> None:
    lines = run(tmp_path, BAD_INDEX.format(wait=wait)).stdout.splitlines()
    assert "CUDA error: device-side assert triggered" in lines[0]
    assert "index 12 is out of bounds" in lines[0] and "with size 10" in lines[0]
    assert "It was launched at program.py:8 (x[bad]  # line 8)." in lines[0]
    assert lines[1:] == ["True"] * 4 + ["3.0"]


LINES = """

def attempt(launch):
    launch()
x = torch.zeros(10, device="cuda")
ten = torch.full((2,), 10, device="cuda")
{call}
try:
    torch.cuda.synchronize()
    print("nothing failed")
except RuntimeError as error:
    print(error)
"""

CALLS = [
    ("attempt(lambda: torch.gather(x, 0, ten))", "gather"),
    ("attempt(lambda: x.scatter_(0, ten, 1.0))", "scatter"),
    ("attempt(lambda: x.index_select(0, ten))", "index_select"),
    ("attempt(lambda: torch.take(x, ten))", "take"),
    ("attempt(lambda: x.index_add_(0, ten, torch.ones(2, device='cuda')))", "index_add"),
    ("attempt(lambda: torch.nn.functional.embedding(ten, x.view(10, 1)))", ""),
]


@pytest.mark.parametrize(("call", "operator"), CALLS)
def test_every_checked_operator_says_its_line(tmp_path: Path, call: str, operator: str) -> None:
    text = run(tmp_path, LINES.format(call=call)).stdout
    assert "device-side assert triggered" in text and f"'{operator}" in text
    assert "launched at program.py:8" in text


def test_blocking_launches_fail_at_the_call(tmp_path: Path) -> None:
    program = """
x = torch.arange(10, device="cuda")
bad = torch.tensor([3, 12], device="cuda")
try:
    x[bad]
except RuntimeError as error:
    print("at the call", "program.py:6" in str(error))
"""
    assert run(tmp_path, program, CUDA_LAUNCH_BLOCKING="1").stdout == "at the call True\n"
    assert run(tmp_path, program).stdout == ""


LOST = """
from flambeau.driver.protocol import Kernel, Launch, Source
from flambeau.runtime import system
context = system.contexts()[0]
x = torch.ones(1000, device="cuda")
kernel = Kernel("wild", None, cuda=Source(
    lambda launch: 'extern "C" __global__ void run(O0* out) { *(volatile float*)(16ull << 40) = 1; }', lambda launch: 1))
exe = context.driver.load(Launch(kernel, (x.meta,), ()), 0)
context.driver.launch(exe, (x.data_ptr(),), (), context.default_stream.handle)
for attempt in (torch.cuda.synchronize, lambda: x + 1, lambda: torch.ones(1 << 26, device="cuda"), lambda: x.tolist()):
    try:
        attempt()
        print("went on")
    except RuntimeError as error:
        print(type(error).__name__, "illegal memory access" in str(error), "context is lost" in str(error),
              "CUDA_LAUNCH_BLOCKING=1" in str(error))
print(torch.ones(3).sum().item())
"""


def test_a_lost_context_is_said_to_be_lost_and_the_process_ends(tmp_path: Path) -> None:
    lines = run(tmp_path, LOST).stdout.splitlines()
    assert lines[0] == "InvalidAddressError True True True"
    assert all(line.endswith("True True True") for line in lines[:4]) and lines[4:] == ["3.0"]


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a process with threads forks
x = torch.ones(3, device="cuda")
child = os.fork()
if child == 0:
    for attempt in (lambda: torch.ones(3, device="cuda"), lambda: x + 1, lambda: x.cpu(), torch.cuda.synchronize):
        try:
            attempt()
            os._exit(1)
        except RuntimeError as error:
            if "Cannot re-initialize CUDA in forked subprocess" not in str(error):
                os._exit(2)
    if torch.ones(3).sum().item() != 3:
        os._exit(3)
    del x
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (x + 1).tolist())
"""
    assert run(tmp_path, program).stdout == "0 [2.0, 2.0, 2.0]\n"


def test_a_child_forked_before_the_first_use_has_the_gpu(tmp_path: Path) -> None:
    program = """
import os
child = os.fork()
x = torch.ones(3, device="cuda") * (2 if child else 3)
if child == 0:
    print(x.tolist(), flush=True)
    raise SystemExit
os.waitpid(child, 0)
print(x.tolist())
"""
    assert run(tmp_path, program).stdout == "[3.0, 3.0, 3.0]\n[2.0, 2.0, 2.0]\n"


ENDS = {
    "work under way": "torch.cuda._sleep(500_000_000)",
    "objects in globals": "s = torch.cuda.Stream(); e = s.record_event(); g = torch.Generator('cuda')\n"
    "with torch.cuda.stream(s):\n    y = torch.fft.fft(x)\n    x.record_stream(s)\np = torch.ones(9).pin_memory()",
    "a cycle with everything": "class Holder: pass\nh = Holder(); h.me = h; h.x = x; h.s = torch.cuda.Stream(); h.e = h.s.record_event()",
    "a thread that goes on": "import threading, time\ndef loop():\n    while True:\n        x.add_(1); time.sleep(0.001)\n"
    "threading.Thread(target=loop, daemon=True).start(); time.sleep(0.1)",
    "an exception": "import sys\nsys.excepthook = lambda *error: print('raised')\nraise KeyError(x)",
    "a destructor at the end": "class Late:\n    def __del__(self):\n        self.x = None\nlate = Late(); late.x = x\n"
    "import builtins; builtins.late = late",
    "os._exit": "import os; os._exit(0)",
    "linear algebra": "torch.linalg.inv(torch.eye(3, device='cuda')); torch.linalg.svdvals(x.view(10, 100))",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends_well(tmp_path: Path, name: str) -> None:
    program = f"x = torch.ones(1000, device='cuda')\n{ENDS[name]}\n"
    if name == "an exception":
        script = tmp_path / "program.py"
        script.write_text("import flambeau as torch\n" + program)
        environment = {**os.environ, "FLAMBEAU_DRIVER": "cuda", "PYTHONPATH": path_with_src()}
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False, env=environment)  # fmt: skip
        assert done.returncode == 1 and done.stdout == "raised\n" and not done.stderr
        return
    run(tmp_path, program, quiet=name != "a thread that goes on")  # which learns that the GPUs are gone


def _used(index: int = 0) -> int:
    """Bytes of the device's memory that all processes use together."""
    import flambeau

    free, total = flambeau.cuda.mem_get_info(index)
    return int(total - free)


HIDDEN = """
import warnings
warnings.simplefilter("error")
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
assert not torch.accelerator.is_available()
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2.0, 2.0, 2.0]
for call in (lambda: torch.ones(3, device="cuda"), lambda: x.cuda(), torch.cuda.init, torch.cuda.current_stream):
    try:
        call()
        raise SystemExit("no error")
    except RuntimeError as error:
        assert "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES=" in str(error), error
"""


@pytest.mark.parametrize("visible", ["", "-1", "99", "nonsense"])
@pytest.mark.parametrize("driver", ["cuda", "auto"])
def test_hidden_gpus_leave_the_cpu(tmp_path: Path, visible: str, driver: str) -> None:
    run(tmp_path, HIDDEN, CUDA_VISIBLE_DEVICES=visible, FLAMBEAU_DRIVER=driver)


@alone
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_no_memory(tmp_path: Path, how: Any) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import flambeau as torch, time\nx = torch.ones(1 << 29, device='cuda')\ntorch.cuda.synchronize()\n"
        "print('ready', flush=True)\nfor _ in range(20):\n    torch.cuda._sleep(100_000_000)\ntime.sleep(600)\n"
    )
    environment = {**os.environ, "FLAMBEAU_DRIVER": "cuda", "PYTHONPATH": path_with_src()}
    before = _used()
    child = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        assert _used() >= before + (2 << 30)
        child.send_signal(how)
        child.wait(timeout=120)
    finally:
        child.kill()
        child.wait()
    deadline = time.monotonic() + 20  # the kernel driver takes its time
    while _used() > before + (64 << 20) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _used() <= before + (64 << 20)
