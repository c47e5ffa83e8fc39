"""`CudaCapture` owns the resources of a stream capture; `CudaGraph` is a captured graph that can be launched.

# Note [What a graph keeps]
A graph launches with the addresses that were captured. Scratch memory and library workspaces of a stream grow and end
with the stream, so a captured stream gets separate ones that the graph owns. Workspace of a single launch is allocated
from the driver's pool as usual: its allocation and its free become nodes of the graph.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.cuda.device.calls import check, error_of
from flambeau.driver.cuda.device.program import CudaExecutable, KernelOfShape, flatten_scalars

if TYPE_CHECKING:
    from flambeau.driver.cuda.device.device import CudaDevice

UNSUPPORTED = "CUDA error: operation not permitted when stream is capturing"
MODES = {
    "global": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    "thread_local": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    "relaxed": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
}
_SEED = struct.Struct("<QQ")
_SMALLEST = 1 << 20
_NON_BLOCKING = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
_SET = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
_VERBOSE = int(cu.CUgraphDebugDot_flags.CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE)


@contextmanager
def relax_capture_mode() -> Iterator[None]:
    """Let this thread allocate memory and load kernels during a capture. The capture does not record these calls."""
    before = check(cu.cuThreadExchangeStreamCaptureMode(MODES["relaxed"]))
    try:
        yield
    finally:
        check(cu.cuThreadExchangeStreamCaptureMode(before))


class CapturedDraw:
    """A captured launch of a kernel that draws random numbers: its node, its parameters, the places of seeds."""

    def __init__(
        self,
        node: Any,
        exe: CudaExecutable | KernelOfShape,
        ptrs: Sequence[int],
        scalars: Sequence[Any],
        positions: Sequence[int],
    ) -> None:
        self._draws = [
            (exe.scalars_at + 8 * len(flatten_scalars(scalars[:k])), scalars[k], scalars[k + 1])
            for k in positions
        ]
        with exe.lock:
            exe.pack(*ptrs, *flatten_scalars(scalars))
            self._buffer = ctypes.create_string_buffer(exe.params.raw, len(exe.params))
        moved = ctypes.addressof(self._buffer) - ctypes.addressof(exe.params)
        self._pointers = type(exe.keep)(*[(place or 0) + moved for place in exe.keep])
        self._node = node
        self._params = check(cu.cuGraphKernelNodeGetParams(node))
        self._params.kernelParams = ctypes.addressof(self._pointers)

    def set(self, executable: Any, seeds: Sequence[tuple[int, int]]) -> None:
        """Set the seeds and offsets that the captured kernel draws with at its graph's next launch."""
        for at, number, offset in self._draws:
            seed, base = seeds[number]
            _SEED.pack_into(self._buffer, at, seed, (base + offset) & 0xFFFFFFFFFFFFFFFF)
        check(cu.cuGraphExecKernelNodeSetParams(executable, self._node, self._params))


class CudaCapture:
    """The resources of one CUDA graph capture.

    Attributes:
        streams: Handle -> device, for the devices whose `captures` contain this capture.
    """

    def __init__(self) -> None:
        self.active = True
        self.streams: dict[int, CudaDevice] = {}
        self.draws: list[CapturedDraw] = []
        self.calls: list[int] = []  # keys of host functions, which every launch calls
        self._memory: list[int] = []
        self._scratch: dict[int, tuple[int, int]] = {}
        self._workspaces: dict[int, tuple[Any, Any]] = {}

    def join(self, stream: int, device: CudaDevice) -> None:
        self.streams[stream] = device
        device.captures[stream] = self

    def leave(self) -> None:
        """End the capture, so that its streams run their commands again."""
        self.active = False
        for stream, device in self.streams.items():
            device.captures.pop(stream, None)

    def note_draw(
        self,
        exe: CudaExecutable | KernelOfShape,
        ptrs: Sequence[int],
        scalars: Sequence[Any],
        positions: Sequence[int],
        native: Any,
    ) -> None:
        """Record that the kernel just captured on the stream draws random numbers, with seeds at these positions."""
        nodes = check(cu.cuStreamGetCaptureInfo(native))[3]
        self.draws.append(CapturedDraw(nodes[0], exe, ptrs, scalars, positions))

    def scratch_of(self, stream: int, nbytes: int) -> int:
        """Return scratch memory of the capture; see `CudaDevice.scratch_of`."""
        ptr, size = self._scratch.get(stream, (0, 0))
        if size < nbytes:
            size = max(nbytes, _SMALLEST)
            ptr = self._allocate_zeroed(size)
            self._scratch[stream] = (ptr, size)
        return ptr

    def workspace_of(self, stream: int, nbytes: int, native: Any) -> tuple[Any, Any]:
        """Return library workspace of the capture; see `CudaDevice.workspace_of`."""
        found = self._workspaces.get(stream)
        if found is None:
            address = ctypes.c_void_p(self._allocate_zeroed(nbytes))
            found = self._workspaces[stream] = (address, ctypes.c_void_p(int(native)))
        return found

    def _allocate_zeroed(self, nbytes: int) -> int:
        with relax_capture_mode():
            ptr = int(check(cu.cuMemAlloc(nbytes)))
            self._memory.append(ptr)
            aside = check(cu.cuStreamCreate(_NON_BLOCKING))
            check(cu.cuMemsetD8Async(ptr, 0, nbytes, aside))
            check(cu.cuStreamSynchronize(aside))
            check(cu.cuStreamDestroy(aside))
        return ptr

    def release(self) -> None:
        """Free the capture's memory. The device first waits for the work that uses it."""
        if self._memory:
            with relax_capture_mode():  # a destructor may run this during another capture
                for ptr in self._memory:
                    cu.cuMemFree(ptr)
        self._memory.clear()


class CudaGraph:
    """A graph of a device that can be launched. `native` is the captured form for debug output."""

    def __init__(self, native: Any, device: CudaDevice, capture: CudaCapture) -> None:
        self.device = device
        self.capture = capture
        self._native = native
        code, self._executable = cu.cuGraphInstantiate(native, 0)
        if code:
            cu.cuGraphDestroy(native)
            raise error_of(code)

    @property
    def native(self) -> tuple[int, int]:
        """Return CUDA's handles of the graph and of its executable form."""
        return int(self._native), int(self._executable)

    def instantiate(self) -> None:
        """Create the executable form again; launches of the old one that are underway finish."""
        fresh = check(cu.cuGraphInstantiate(self._native, 0))
        cu.cuGraphExecDestroy(self._executable)
        self._executable = fresh

    def launch(self, native: Any, seeds: Sequence[tuple[int, int]]) -> None:
        for draw in self.capture.draws:
            draw.set(self._executable, seeds)
        check(cu.cuGraphLaunch(self._executable, native))

    def nest(self, native: Any) -> None:
        """Add the graph as a node to the graph that a stream is captured into.

        Raises:
            NotSupportedError: If it draws random numbers.
        """
        if self.capture.draws:
            raise NotSupportedError(
                "a graph that draws random numbers cannot be part of another on real GPUs yet"
            )
        info = check(cu.cuStreamGetCaptureInfo(native))
        node = check(cu.cuGraphAddChildGraphNode(info[2], info[3], len(info[3]), self._native))
        check(cu.cuStreamUpdateCaptureDependencies(native, [node], None, 1, _SET))

    def dump(self, path: str) -> None:
        check(cu.cuGraphDebugDotPrint(self._native, path.encode(), _VERBOSE))

    def destroy(self) -> None:
        """Destroy the graph. CUDA completes launches that are under way."""
        cu.cuGraphExecDestroy(self._executable)
        cu.cuGraphDestroy(self._native)
        self.capture.release()


def refuse(captures: dict[int, CudaCapture], stream: int) -> None:
    """Raise DriverError if the stream is captured: the pageable memory of a copy may be freed before the launch."""
    if stream in captures:
        raise DriverError(f"{UNSUPPORTED}: the host memory of a captured copy must be pinned")
