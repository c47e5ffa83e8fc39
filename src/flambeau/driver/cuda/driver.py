"""`CudaDriver`: the driver's contract on real GPUs, over NVIDIA's cuda-bindings.

# Note [Contexts of real GPUs]
Every device is used through its primary context, which PyTorch, CuPy and the CUDA runtime share. It is retained
when a call first needs it. The driver API keeps a current context per thread; `_enter` sets it before each call
that depends on it: always where there are several GPUs, since other libraries switch too, and once per
thread where there is one. A collection of garbage may come between the two, and what it ends may be another GPU's:
so where there are several, each collection puts back the context that it found.

# Note [Handles of real GPUs]
Handles are counted, not pointers: a native handle is used again after it is destroyed, and a stale one must be
refused. The tables map them to the native objects; a look-up costs less than the conversion of an int.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError, InvalidAddressError, NotSupportedError
from flambeau.driver.api import Collective, DeviceProperties, HostMemory, Launch, Launcher
from flambeau.driver.cuda import build, handles, ipc, nvml
from flambeau.driver.cuda.calls import NOT_READY, OUT_OF_MEMORY, check, error_of
from flambeau.driver.cuda.capture import MODES, UNSUPPORTED, Capture, Graph, refuse, relaxed
from flambeau.driver.cuda.compiler import Compiler
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.nccl import Communicators
from flambeau.driver.cuda.program import ADDRESS, CudaExecutable, Late, Program, flattened, mark
from flambeau.driver.cuda.reserved import Reserved, page_of

_FIRST_HANDLE = 4096  # default streams are 1 + index
_NON_BLOCKING = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
_PORTABLE = int(cu.CU_MEMHOSTALLOC_PORTABLE)
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Queue:
    """A stream: its native object, its device, whether it is the default stream or another library's."""

    __slots__ = ("borrowed", "default", "device", "handle", "native")

    def __init__(
        self, handle: int, native: Any, device: Device, default: bool = False, borrowed: bool = False
    ) -> None:
        self.handle = handle
        self.borrowed = borrowed
        self.native = native
        self.device = device
        self.default = default


class _Event:
    __slots__ = ("capture", "device", "native", "recorded", "timing")

    def __init__(self, native: Any, device: Device, timing: bool) -> None:
        self.native = native
        self.device = device
        self.timing = timing
        self.recorded = False
        self.capture: Capture | None = None  # that it was last recorded in


def _complete(late: Late, queue: _Queue, stream: int) -> None:
    """Fill in the parameters that are known only at a launch."""
    if late.scratch:
        at = queue.device.scratch_of(stream, late.scratch, queue.native)
        ADDRESS.pack_into(late.params, late.scratch_at, at)
    if late.guards:
        mark(late.params, late.guards, queue.device.assertions.launched())


class _Thread(threading.local):
    """What is known of the calling thread: whether its current context was set; that before a collection."""

    entered = False
    context: Any = None


class CudaDriver:
    """See the module's docstring; contracts in `flambeau.driver.api.Driver`.

    kernel_cache: the folder that compiled kernels are kept in; None keeps none.
    """

    name = "cuda"
    observes_blocks = False

    def __init__(self, kernel_cache: Path | None = None) -> None:
        check(cu.cuInit(0))
        self._devices = [Device(i) for i in range(check(cu.cuDeviceGetCount()))]
        self._several = len(self._devices) > 1
        self._handles = itertools.count(_FIRST_HANDLE)
        self._queues = {
            1 + d.index: _Queue(1 + d.index, cu.CUstream(0), d, default=True) for d in self._devices
        }
        self._stopped: dict[int, _Queue] = {}  # of devices where an assertion failed: they run nothing more
        self._events: dict[int, _Event] = {}
        self._graphs: dict[int, Graph] = {}
        self._captures: dict[int, Capture] = {}  # by the stream where they began
        self._memory: dict[int, Device] = {}
        self._ranges: dict[int, Reserved] = {}  # by first address
        self._reach: set[tuple[int, int]] = set()  # (device, peer whose memory it reaches)
        self._opened: dict[int, Device] = {}  # other processes' memory
        self._pinned: dict[int, int] = {}
        self._peers: set[tuple[int, int]] = set()
        self._thread = _Thread()
        self._process = os.getpid()
        self._collected = self._keep_context
        if self._several:
            gc.callbacks.append(self._collected)
        self._lock = threading.Lock()
        self._folder = kernel_cache
        self._compilers: dict[tuple[int, int], Compiler] = {}
        self._functions: dict[tuple[int, str], Any] = {}  # device and source -> loaded function
        self._libraries: list[Any] = []
        self._calls: dict[int, Callable[[], None]] = {}  # host functions that are queued
        self._kept: set[int] = set()  # those of graphs
        self._raised: list[BaseException] = []  # what they raised, for the next wait
        self._trampoline = _HOST_FUNCTION(self._run_host_call)
        self._trampoline_at = ctypes.cast(self._trampoline, ctypes.c_void_p).value
        self._communicators = Communicators()
        self._closed = False

    # -- devices --------------------------------------------------------------------------------------
    def device_count(self) -> int:
        self._check_open()
        return len(self._devices)

    def device_properties(self, index: int) -> DeviceProperties:
        return self._device(index).properties

    def device_sync(self, index: int) -> None:
        device = self._device(index)
        if device.context is not None:
            self._enter(device)
            check(cu.cuCtxSynchronize())
        self._raise_late(device)

    def mem_info(self, index: int) -> tuple[int, int]:
        self._enter(self._device(index))
        free, total = check(cu.cuMemGetInfo())
        return int(free), int(total)

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        return nvml.processes(self.device_properties(index).uuid)

    def close(self) -> None:
        """Errors of unfinished work are not raised here: `device_sync` before it says them."""
        if self._closed:
            return
        if self._several:
            gc.callbacks.remove(self._collected)
        for comm in self._communicators.all():
            with suppress(DriverError):
                self.comm_destroy(comm, abort=self.comm_error(comm) is not None)
        for device in self._devices:
            if device.context is not None:
                self._give_back(device)
        self._closed = True
        for table in (self._queues, self._stopped, self._events, self._memory, self._pinned, self._functions):
            table.clear()
        self._graphs.clear()
        self._captures.clear()

    def _give_back(self, device: Device) -> None:
        """Everything of one device, in the order that its work may need it; what fails is lost with the context."""
        self._enter(device)
        cu.cuCtxSynchronize()
        for graph in [g for g in self._graphs.values() if g.device is device]:
            graph.destroy()
        for queue in [q for q in (*self._queues.values(), *self._stopped.values()) if q.device is device]:
            device.drop_scratch(queue.handle, cu.CUstream(0) if queue.borrowed else queue.native)
            if not queue.default and not queue.borrowed:
                cu.cuStreamDestroy(queue.native)
        for event in [e for e in self._events.values() if e.device is device]:
            cu.cuEventDestroy(event.native)
        for ptr in [p for p, owner in self._memory.items() if owner is device]:
            cu.cuMemFree(ptr)
        for ptr in [p for p, owner in self._opened.items() if owner is device]:
            cu.cuIpcCloseMemHandle(ptr)
        for ptr in self._pinned:
            cu.cuMemFreeHost(ptr)
        self._pinned.clear()
        for held in self._ranges.values():
            if held.device is device:
                held.drop()
        for library in self._libraries:
            cu.cuLibraryUnload(library)
        self._libraries.clear()
        device.close_pool()
        cu.cuDevicePrimaryCtxRelease(device.handle)
        device.context = None

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        device = self._device(index)
        if nbytes < 0:
            raise DriverError(f"mem_alloc: the size must not be negative, got {nbytes}")
        self._enter(device)
        with self._uncaptured():
            code, ptr = cu.cuMemAlloc(max(nbytes, 1))
            if code == OUT_OF_MEMORY:  # what the pool of workspaces keeps may be what is missing
                device.pool.trim()
                code, ptr = cu.cuMemAlloc(max(nbytes, 1))
        ptr = int(check((code, ptr)))
        self._memory[ptr] = device
        return ptr

    def mem_free(self, ptr: int) -> None:
        device = self._memory.get(ptr)
        if device is None:
            self._check_open()
            raise InvalidAddressError(
                f"mem_free: {ptr:#x} was not allocated by this driver, or freed already"
            )
        self._enter(device)
        check(cu.cuCtxSynchronize())
        check(cu.cuMemFree(ptr))
        del self._memory[ptr]

    def range_page(self, index: int) -> int:
        return page_of(self._device(index))

    def range_reserve(self, index: int, nbytes: int) -> int:
        device = self._device(index)
        page = page_of(device)
        if not page:
            raise NotSupportedError(f"cuda:{index} has no virtual-memory calls")
        if nbytes <= 0 or nbytes % page:
            raise DriverError(f"range_reserve: {nbytes} bytes are not whole pages of {page} bytes")
        self._enter(device)
        ptr = int(check(cu.cuMemAddressReserve(nbytes, 0, 0, 0)))
        self._ranges[ptr] = Reserved(device, ptr, nbytes)
        return ptr

    def range_map(self, ptr: int, nbytes: int) -> None:
        held = self._reserved("range_map", ptr, nbytes)
        self._enter(held.device)
        others = [self._devices[i] for i, peer in self._reach if peer == held.device.index]
        with self._uncaptured():
            held.map(ptr, nbytes, [held.device, *others])

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        held = self._reserved("range_unmap", ptr, nbytes)
        self._enter(held.device)
        check(cu.cuCtxSynchronize())
        held.unmap(ptr, nbytes)

    def range_release(self, ptr: int) -> None:
        held = self._reserved("range_release", ptr, 0)
        self._enter(held.device)
        held.release(ptr)
        del self._ranges[ptr]

    def _reserved(self, what: str, ptr: int, nbytes: int) -> Reserved:
        for held in self._ranges.values():
            if held.ptr <= ptr and ptr + nbytes <= held.ptr + held.nbytes:
                return held
        self._check_open()
        if not any(page_of(device) for device in self._devices):
            raise NotSupportedError(f"{what}: these GPUs have no virtual-memory calls")
        raise InvalidAddressError(f"{what}: {nbytes} bytes at {ptr:#x} were not reserved by this driver")

    def host_alloc(self, nbytes: int) -> HostMemory:
        self._enter(self._device(0))
        with self._uncaptured():
            ptr = int(check(cu.cuMemHostAlloc(max(nbytes, 1), _PORTABLE)))
        self._pinned[ptr] = nbytes
        return HostMemory(ptr, nbytes, None, pinned=True)

    def host_free(self, memory: HostMemory) -> None:
        if memory.ptr not in self._pinned:
            self._check_open()
            raise InvalidAddressError(
                f"host_free: {memory.ptr:#x} was not allocated by this driver, or freed already"
            )
        for device in self._devices:
            if device.context is not None:
                self._enter(device)
                check(cu.cuCtxSynchronize())
        self._enter(self._devices[0])
        check(cu.cuMemFreeHost(memory.ptr))
        del self._pinned[memory.ptr]

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        pass

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False) -> None:
        pass

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        pass

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        pass

    # -- copies and fills -----------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        queue = self._queue(stream)
        if not source.nbytes:
            return
        if not source.pinned:
            refuse(queue.device.captures, stream)
        check(cu.cuMemcpyHtoDAsync(target, source.ptr, source.nbytes, queue.native))
        if not source.pinned and queue.device.reads_pageable:
            check(cu.cuStreamSynchronize(queue.native))

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        queue = self._queue(stream)
        if not target.nbytes:
            return
        if not target.pinned:
            refuse(queue.device.captures, stream)
        check(cu.cuMemcpyDtoHAsync(target.ptr, source, target.nbytes, queue.native))
        if not target.pinned:
            check(cu.cuStreamSynchronize(queue.native))
            self._raise_late(queue.device)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        queue = self._queue(stream)
        if nbytes:
            check(cu.cuMemcpyAsync(target, source, nbytes, queue.native))

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        queue = self._queue(stream)
        if nbytes:
            check(cu.cuMemsetD8Async(target, byte & 255, nbytes, queue.native))

    # -- streams --------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        return 1 + self._device(index).index

    def stream_create(self, index: int, priority: int) -> int:
        device = self._device(index)
        self._enter(device)
        native = check(cu.cuStreamCreateWithPriority(_NON_BLOCKING, priority))
        handle = next(self._handles)
        self._queues[handle] = _Queue(handle, native, device)
        return handle

    def stream_destroy(self, stream: int) -> None:
        queue = self._queue(stream)
        if queue.default:
            raise DriverError("stream_destroy: the default stream stays")
        if queue.borrowed:
            raise DriverError("stream_destroy: the stream is another library's")
        if stream in queue.device.captures:
            raise DriverError(UNSUPPORTED)
        queue.device.drop_scratch(stream, queue.native)
        check(cu.cuStreamDestroy(queue.native))
        del self._queues[stream]

    def stream_native(self, stream: int) -> int:
        return int(self._queues[stream].native) if stream in self._queues else int(self._queue(stream).native)

    def stream_adopt(self, index: int, native: int) -> int:
        device = self._device(index)
        if native in (0, 1):  # cudaStreamLegacy
            return self.stream_default(index)
        for queue in list(self._queues.values()):
            if queue.device is device and int(queue.native) == native:
                return queue.handle
        handle = next(self._handles)
        self._queues[handle] = _Queue(handle, cu.CUstream(native), device, borrowed=True)
        return handle

    def stream_query(self, stream: int) -> bool:
        queue = self._queue(stream)
        (code,) = cu.cuStreamQuery(queue.native)
        return self._is_done(code, queue.device)

    def stream_sync(self, stream: int) -> None:
        queue = self._queue(stream)
        check(cu.cuStreamSynchronize(queue.native))
        self._raise_late(queue.device)

    def stream_wait(self, stream: int, event: int) -> None:
        queue = self._queues.get(stream) or self._queue(stream)
        found = self._events.get(event) or self._event(event)
        if self._several or not self._thread.entered:
            self._enter(
                queue.device
            )  # last: a default stream is the current context's, whatever the event's is
        (code,) = cu.cuStreamWaitEvent(queue.native, found.native, 0)
        if code:
            raise error_of(code)
        if found.capture is not None and found.capture.active:
            found.capture.join(stream, queue.device)

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        device = self._device(index)
        timing = timing and not interprocess
        self._enter(device)
        native = check(cu.cuEventCreate(int(blocking) | (0 if timing else 2) | (4 if interprocess else 0)))
        handle = next(self._handles)
        self._events[handle] = _Event(native, device, timing)
        return handle

    def event_destroy(self, event: int) -> None:
        check(cu.cuEventDestroy(self._event(event).native))
        del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        queue, found = self._queue(stream), self._event(event)
        if found.device is not queue.device:
            raise DriverError(
                f"event_record: the event is of device {found.device.index}, the stream of {queue.device.index}"
            )
        check(cu.cuEventRecord(found.native, queue.native))
        found.recorded = True
        found.capture = queue.device.captures.get(stream)

    def event_query(self, event: int, internal: bool = False) -> bool:
        found = self._event(event)
        (code,) = cu.cuEventQuery(found.native)
        return self._is_done(code, found.device)

    def event_sync(self, event: int, internal: bool = False) -> None:
        found = self._event(event)
        check(cu.cuEventSynchronize(found.native))
        self._raise_late(found.device)

    def event_elapsed_ns(self, start: int, end: int) -> int:
        events = []
        for event in (start, end):
            found = self._event(event)
            if not found.timing:
                raise DriverError(f"event_elapsed_ns: event {event} was created without timing")
            if not found.recorded:
                raise DriverError(f"event_elapsed_ns: event {event} was never recorded")
            events.append(found.native)
        if start == end:
            return 0
        return round(check(cu.cuEventElapsedTime(*events)) * 1e6)

    # -- other processes ------------------------------------------------------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        device = self._memory.get(ptr)
        if device is None:
            self._check_open()
            raise InvalidAddressError(
                f"ipc_memory: {ptr:#x} was not allocated by this driver, or freed already"
            )
        self._enter(device)
        return ipc.memory_handle(ptr)

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        device = self._device(index)
        self._enter(device)
        ptr, nbytes = ipc.open_memory(handle)
        self._opened[ptr] = device
        return ptr, nbytes

    def ipc_close(self, ptr: int) -> None:
        device = self._opened.get(ptr)
        if device is None:
            self._check_open()
            raise InvalidAddressError(
                f"ipc_close: {ptr:#x} is not another process's memory, or closed already"
            )
        self._enter(device)
        check(cu.cuCtxSynchronize())
        ipc.close_memory(ptr)
        del self._opened[ptr]

    def ipc_event(self, event: int) -> bytes:
        return ipc.event_handle(self._event(event).native)

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        device = self._device(index)
        self._enter(device)
        native = ipc.open_event(handle)
        event = next(self._handles)
        self._events[event] = _Event(native, device, timing=False)
        return event

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> CudaExecutable:
        device = self._device(index)
        launch = launch.with_(capability=device.capability)
        exe = CudaExecutable(launch, index)
        self._enter(device)
        with self._uncaptured():
            built = build.build(launch, device, self)
            if isinstance(built, Program):
                exe.prepare(built, partial(cu.cuLaunchKernel, self._function(device, launch, built)))
                exe.launch_on = self._launcher_of_kernel(exe)
            else:
                exe.run = built
                exe.launch_on = self._launcher_of_run(built)
        if launch.kernel.draws:
            exe.launch_on = self._launcher_of_draws(exe, device, exe.launch_on)
        return exe

    def unload(self, exe: CudaExecutable) -> None:
        self._check_open()  # compiled kernels are shared by many launches and stay until the driver closes
        close = getattr(exe.run, "close", None)
        if close is not None:
            self._enter(self._devices[exe.index])
            close()

    def launch(self, exe: CudaExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        exe.launch_on(ptrs, scalars, stream)

    def launcher(self, exe: CudaExecutable) -> Launcher:
        return exe.launch_on

    def _launcher_of_kernel(self, exe: CudaExecutable) -> Launcher:
        """All that a launch looks at is bound here: the time of each look is a tenth of what a launch may take."""
        queues, several, thread = self._queues, self._several, self._thread
        lock, pack, flat, late, call, address = exe.lock, exe.pack, exe.flat, exe.late, exe.call, exe.address

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            queue = queues.get(stream) or self._queue(stream)
            if several or not thread.entered:
                self._enter(queue.device)
            with lock:
                if scalars:
                    pack(*ptrs, *(scalars if flat else flattened(scalars)))
                else:  # the time of one more unpacking shows
                    pack(*ptrs)
                if late is not None:
                    _complete(late, queue, stream)
                (code,) = call(queue.native, address, 0)
            if code:
                raise error_of(code)

        launch.keep = exe.keep  # type: ignore[attr-defined]  # `address` is its; the executable may go before
        return launch

    def _launcher_of_run(self, run: build.Run) -> Launcher:
        queues, several, thread = self._queues, self._several, self._thread

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            queue = queues.get(stream) or self._queue(stream)
            if several or not thread.entered:
                self._enter(queue.device)
            run(ptrs, scalars, queue.native, stream)

        return launch

    def _launcher_of_draws(self, exe: CudaExecutable, device: Device, plain: Launcher) -> Launcher:
        """A capture takes note of each kernel that draws: launches of its graph give it other seeds."""
        captures = device.captures

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            capture = captures.get(stream)
            if capture is None:
                plain(ptrs, scalars, stream)
            elif exe.run is not None:
                raise NotSupportedError(
                    f"{exe.launch.kernel.name} on CUDA cannot be captured into a graph yet"
                )
            else:
                plain(ptrs, scalars, stream)
                capture.note_draw(exe, ptrs, scalars, self._queue(stream).native)

        return launch

    def library_handle(self, name: str, stream: int) -> int:
        queue = self._queue(stream)
        return handles.handle_of(queue.device, name, int(queue.native))

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        queue = self._queue(stream)
        key = next(self._handles)
        self._calls[key] = call
        if stream in queue.device.captures:
            queue.device.captures[stream].calls.append(key)
            self._kept.add(key)
        (code,) = cu.cuLaunchHostFunc(queue.native, cu.CUhostFn(self._trampoline_at), key)
        if code:
            del self._calls[key]
            raise error_of(code)

    def _run_host_call(self, key: int) -> None:
        """Runs in a thread of CUDA's, which takes the GIL: every wait of this driver has released it."""
        try:
            (self._calls[key] if key in self._kept else self._calls.pop(key))()
        except BaseException as error:
            self._raised.append(error)

    # -- graphs ---------------------------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        queue = self._queue(stream)
        if mode not in MODES:
            raise DriverError(f"capture_begin: the mode must be one of {tuple(MODES)}, not {mode!r}")
        if queue.default or stream in queue.device.captures:
            raise DriverError(UNSUPPORTED)
        check(cu.cuStreamBeginCapture(queue.native, MODES[mode]))
        capture = self._captures[stream] = Capture()
        capture.join(stream, queue.device)

    def capture_end(self, stream: int) -> int:
        queue = self._queue(stream)
        capture = self._captures.pop(stream, None)
        if capture is None:
            raise DriverError(f"CUDA error: invalid argument: no capture began on stream {stream}")
        code, native = cu.cuStreamEndCapture(queue.native)
        capture.leave()
        try:
            graph = Graph(check((code, native)), queue.device, capture)
        except DriverError:
            self._forget_capture(capture)
            raise
        handle = next(self._handles)
        self._graphs[handle] = graph
        return handle

    def capture_active(self, stream: int) -> bool:
        return stream in self._queue(stream).device.captures

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        found, queue = self._graph(graph), self._queue(stream)
        if found.device is not queue.device:
            raise DriverError(
                f"graph_launch: the graph is of device {found.device.index}, the stream of {queue.device.index}"
            )
        if stream in queue.device.captures:
            found.nest(queue.native)
        else:
            found.launch(queue.native, seeds)

    def graph_dump(self, graph: int, path: str) -> None:
        self._graph(graph).dump(path)

    def graph_native(self, graph: int) -> tuple[int, int]:
        return self._graph(graph).native

    def graph_instantiate(self, graph: int) -> None:
        self._graph(graph).instantiate()

    def graph_destroy(self, graph: int) -> None:
        found = self._graph(graph)
        if found.capture.calls:  # launches that are underway may yet call them
            check(cu.cuCtxSynchronize())
        found.destroy()
        self._forget_capture(found.capture)
        del self._graphs[graph]

    def _graph(self, graph: int) -> Graph:
        found = self._graphs.get(graph)
        if found is None:
            self._check_open()
            raise DriverError(f"{graph} is no graph of the cuda driver, or was destroyed")
        self._enter(found.device)
        return found

    def _forget_capture(self, capture: Capture) -> None:
        capture.release()
        for key in capture.calls:
            self._kept.discard(key)
            self._calls.pop(key, None)

    def _uncaptured(self) -> AbstractContextManager[None]:
        """What may be done amid a capture without being part of it: see `Driver.capture_begin`."""
        return relaxed() if self._captures else nullcontext()

    # -- collectives ----------------------------------------------------------------------------------
    def comm_id(self) -> bytes:
        self._check_open()
        return self._communicators.unique()

    def comm_create(
        self, unique: bytes, size: int, members: Sequence[tuple[int, int]], called: Sequence[int] = ()
    ) -> list[int]:
        for _, index in members:
            self._device(index)
        handles = [next(self._handles) for _ in members]
        self._communicators.join(unique, size, members, self._enter_at, handles)
        return handles

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        self._check_open()
        member = self._communicators.find(comm)
        self._enter(self._devices[member.index])
        if not abort:
            for queue in [q for q in map(self._queues.get, member.streams) if q is not None]:
                check(cu.cuStreamSynchronize(queue.native))
        self._communicators.leave(comm, abort)

    def comm_error(self, comm: int) -> str | None:
        self._check_open()
        return self._communicators.error(comm)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        queues = [self._queue(stream) for _, _, stream in parts]
        placed = [
            (comm, part, queue.device.index, stream, queue.native)
            for (comm, part, stream), queue in zip(parts, queues, strict=True)
        ]
        self._communicators.run(placed, self._enter_at)

    def _enter_at(self, index: int) -> None:
        self._enter(self._devices[index])

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        a, b = self._device(index), self._device(peer)
        return a is not b and bool(check(cu.cuDeviceCanAccessPeer(a.handle, b.handle)))

    def peer_enable(self, index: int, peer: int) -> None:
        if not self.peer_can(index, peer):
            raise NotSupportedError(f"device {index} cannot reach the memory of device {peer} directly")
        device, other = self._devices[index], self._devices[peer]
        self._enter(device)
        (code,) = cu.cuCtxEnablePeerAccess(other.open(), 0)
        if code and code != cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
            raise error_of(code)
        self._reach.add((index, peer))
        for held in self._ranges.values():
            if held.device is other:
                held.allow(device)

    # -- what the builders of kernels use ---------------------------------------------------------------
    def compiler(self, device: Device) -> Compiler:
        """The compiler for the device's architecture."""
        found = self._compilers.get(device.capability)
        if found is None:
            major, minor = device.capability
            found = self._compilers[device.capability] = Compiler(f"sm_{major}{minor}", self._folder)
        return found

    def _function(self, device: Device, launch: Launch, program: Program) -> Any:
        """The loaded function of a launch's kernel."""
        name, source = program.named(launch)
        key = (device.index, source)
        found = self._functions.get(key)
        if found is None:
            with self._lock:
                found = self._functions[key] = self._functions.get(key) or self._compile(device, name, source)
        return found

    def _compile(self, device: Device, name: str, source: str) -> Any:
        cubin = self.compiler(device).cubin(source)
        library = check(cu.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        self._libraries.append(library)
        return check(cu.cuKernelGetFunction(check(cu.cuLibraryGetKernel(library, name.encode()))))

    # -- checks ---------------------------------------------------------------------------------------
    def _enter(self, device: Device) -> None:
        """See Note [Contexts of real GPUs]."""
        (code,) = cu.cuCtxSetCurrent(device.open() if device.context is None else device.context)
        if code:
            raise error_of(code)
        self._thread.entered = True

    def _keep_context(self, phase: str, info: dict[str, int]) -> None:
        """Called around each collection of garbage. A forked child has no contexts."""
        if os.getpid() != self._process:
            return
        if phase == "start":
            _, self._thread.context = cu.cuCtxGetCurrent()
        else:
            cu.cuCtxSetCurrent(self._thread.context)

    def _is_done(self, code: Any, device: Device) -> bool:
        if code == NOT_READY:
            return False
        if code:
            raise error_of(code)
        self._raise_late(device)
        return True

    def _raise_late(self, device: Device) -> None:
        """What kernels and host functions had to say, once they are done."""
        if device.assertions.words[0]:
            for handle in [h for h, queue in self._queues.items() if queue.device is device]:
                self._stopped[handle] = self._queues.pop(handle)
            raise device.assertions.error(device.index)
        if self._raised:
            raise self._raised.pop(0)

    def _check_open(self) -> None:
        if self._closed:
            raise DriverError("the cuda driver has been closed")

    def _device(self, index: int) -> Device:
        self._check_open()
        if not 0 <= index < len(self._devices):
            raise DriverError(
                f"CUDA error: invalid device ordinal: the cuda driver has {len(self._devices)} devices, "
                f"there is no device {index}"
            )
        return self._devices[index]

    def _queue(self, stream: int) -> _Queue:
        found = self._queues.get(stream)
        if found is None:
            self._check_open()
            if stream in self._stopped:
                device = self._stopped[stream].device
                raise device.assertions.error(device.index)
            raise DriverError(f"{stream} is no stream of the cuda driver, or was destroyed")
        if self._several or not self._thread.entered:
            self._enter(found.device)
        return found

    def _event(self, event: int) -> _Event:
        found = self._events.get(event)
        if found is None:
            self._check_open()
            raise DriverError(f"{event} is no event of the cuda driver, or was destroyed")
        if self._several or not self._thread.entered:
            self._enter(found.device)
        return found
