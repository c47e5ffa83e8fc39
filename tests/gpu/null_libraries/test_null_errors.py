"""Late errors over a libcuda that only succeeds: what is said of a launch whose kernel failed."""

from __future__ import annotations

from pathlib import Path

from test_null_driver import library, run

assert library  # a fixture

PROGRAM = """
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
import flambeau as torch
from flambeau.runtime import system
x, places = torch.zeros(10, device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")
for i in range(3):
    torch.gather(x, 0, places)
torch.gather(x, 0, places); sent = system.accelerator()._contexts.devices[0].assertions._launches
x.index_add_(0, places, torch.ones(2, device="cuda"))
assertions = system.accelerator()._contexts.devices[0].assertions
assert assertions._launches > sent
{more}
assertions.words[:] = [sent << 16 | 1, 12, 10, 0]  # what the kernel of the fourth gather would write
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print(error)
try:
    x + 1
except RuntimeError as error:
    print(error)
"""


def test_an_assertion_says_the_line_of_its_launch(library: Path) -> None:
    said = run(library, PROGRAM.format(more="")).splitlines()
    assert said[0] == said[1] == (
        "CUDA error: device-side assert triggered: 'gather' on cuda:0 failed: index 12 is out of bounds for dimension "
        "0 with size 10. It was launched at <string>:9. The error was seen at a synchronization, and stays: no later "
        "work of this device runs."
    )  # fmt: skip


def test_the_lines_of_very_many_launches_are_forgotten(library: Path) -> None:
    more = "for i in range(8200): torch.gather(x, 0, places)"
    said = run(library, PROGRAM.format(more=more))
    assert "failed: index 12 is out of bounds" in said and "launched at" not in said


LOST = """
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
import flambeau as torch
from flambeau.runtime import system
from cuda.bindings import driver as cu
for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
    with torch.cuda.stream(stream):
        torch.ones(1 << 22, device="cuda").sort()
pool = system.accelerator()._contexts.devices[0].pool
assert len([kept for _, kept in pool._kept.values() if kept]) == 2
cu.cuMemFreeAsync = lambda *given: (cu.CUresult.CUDA_ERROR_ASSERT,)
system.close_all()
assert pool._pool is None
print("closed")
"""


def test_a_lost_context_is_closed_without_a_word(library: Path) -> None:
    assert run(library, LOST) == "closed\n"


CLOSED = """
from cuda.bindings import driver as cu
from flambeau.core.errors import DriverError
from flambeau.driver.cuda.driver import CudaDriver
driver = CudaDriver()
stream, device = driver.stream_create(0, 0), driver._contexts.devices[0]
driver.capture_begin(stream, "relaxed")
device.scratch_of(stream, 100, driver._streams.queues[stream].native)
driver.capture_end(stream)
class Lost:
    def close(self):
        raise DriverError("its context is lost")
device.libraries["cufft"] = Lost()
cu.cuThreadExchangeStreamCaptureMode = lambda mode: (cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, None)
driver._memory._opened[4096] = device
release, released = cu.cuDevicePrimaryCtxRelease, []
cu.cuDevicePrimaryCtxRelease = lambda handle: released.append(handle) or release(handle)
driver.close()
print(len(released), "released")
try:
    driver.ipc_close(4096)
except DriverError as error:
    print(error, device.context)
"""


def test_what_fails_at_the_end_keeps_nothing_and_no_context_comes_back(library: Path) -> None:
    assert run(library, CLOSED) == "1 released\nthe cuda driver has been closed None\n"


HALFWAY = """
from cuda.bindings import driver as cu
from flambeau.core.errors import DriverError
from flambeau.driver.cuda.driver import CudaDriver
driver, closed = CudaDriver(), []
cu.cuIpcOpenMemHandle = lambda handle, flags: (cu.CUresult.CUDA_SUCCESS, cu.CUdeviceptr(4096))
cu.cuMemGetAddressRange = lambda ptr: (cu.CUresult.CUDA_ERROR_NOT_FOUND, None, None)
cu.cuIpcCloseMemHandle = lambda ptr: closed.append(ptr) or (cu.CUresult.CUDA_SUCCESS,)
try:
    driver.ipc_open(0, bytes(64))
except DriverError:
    print(closed)
"""


def test_memory_of_another_process_that_has_no_size_is_closed_again(library: Path) -> None:
    assert run(library, HALFWAY) == "[4096]\n"


OLD = """
import ctypes
ctypes.CDLL("libnccl.so.2")
from flambeau.core.errors import NotSupportedError
from flambeau.driver.cuda.libraries.native_library import NativeLibrary
try:
    NativeLibrary("nccl", "NCCL", "nccl", {}).function("ncclOfTomorrow", "p")
except NotSupportedError as error:
    print(error)
"""


def test_a_library_that_is_too_old_is_named(library: Path) -> None:
    assert run(library, OLD) == "NCCL has no ncclOfTomorrow on this machine: it is too old\n"


MISSING = """
from unittest import mock
import cuda.pathfinder
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
import flambeau as torch
x = torch.zeros(300, 300, device="cuda")  # a small product is a kernel of ours
with mock.patch.object(cuda.pathfinder, "load_nvidia_dynamic_lib", side_effect=RuntimeError("not there")):
    for use in (lambda: x @ x, lambda: torch.fft.fft(x), lambda: torch.linalg.inv(x), torch.cuda.current_blas_handle):
        try:
            use()
        except torch.NotSupportedError as error:
            print(error)
"""


def test_a_library_that_is_not_there_is_named_with_its_extra(library: Path) -> None:
    assert run(library, MISSING).splitlines() == [
        f"{title} is not on this machine: pip install 'flambeau[{extra}]'"
        for title, extra in (
            ("cuBLASLt", "cuda13"), ("cuFFT", "cuda13"), ("cuSOLVER", "cusolver"), ("cuBLAS", "cuda13")
        )
    ]  # fmt: skip
