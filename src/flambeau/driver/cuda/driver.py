"""`CudaDriver`: the driver's contract on real GPUs, over NVIDIA's cuda-bindings.

Its contexts, memory, loaded kernels and host functions have separate owners; here are streams, events, graphs and
launches.

# Note [Handles of real GPUs]
Handles are counted, not pointers: a native handle is used again after it is destroyed, and a stale one must be
refused. The tables map them to the native objects; a look-up costs less than the conversion of an int.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import TIMED_INTERPROCESS, DriverError, NotSupportedError
from flambeau.core.meta import Meta
from flambeau.driver.api import Collective, DeviceProperties, Generic, HostMemory, Launch, Launcher
from flambeau.driver.cuda import build
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, sequence
from flambeau.driver.cuda.device import ipc_handles
from flambeau.driver.cuda.device.allocations import CudaAllocations
from flambeau.driver.cuda.device.calls import NOT_READY, check, error_of
from flambeau.driver.cuda.device.capture import (
    MODES,
    UNSUPPORTED,
    CudaCapture,
    CudaGraph,
    refuse,
    relax_capture_mode,
)
from flambeau.driver.cuda.device.contexts import Contexts
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.functions import Functions
from flambeau.driver.cuda.device.host_calls import HostCalls
from flambeau.driver.cuda.device.program import (
    ADDRESS,
    CudaExecutable,
    GenericKernel,
    KernelOfShape,
    KernelProgram,
    Late,
    flatten_scalars,
    mark,
    wire_format,
)
from flambeau.driver.cuda.device.virtual_memory import page_of
from flambeau.driver.cuda.libraries import handles, nvml
from flambeau.driver.cuda.libraries.nccl import NcclCommunicators

_FIRST_HANDLE = 4096  # handles of default streams are 1 + index
_NON_BLOCKING = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)

_ABORTED = (
    "NCCL: a communicator was aborted while a stream that it used had work left: a collective among that has not "
    "happened, and its tensors hold anything"
)


class _CudaStream:
    """A stream: its native object, its device, whether it is the default stream or another library's."""

    __slots__ = ("borrowed", "default", "device", "handle", "native")

    def __init__(
        self, handle: int, native: Any, device: CudaDevice, default: bool = False, borrowed: bool = False
    ) -> None:
        self.handle = handle
        self.borrowed = borrowed
        self.native = native
        self.device = device
        self.default = default


class _Event:
    __slots__ = ("capture", "device", "native", "recorded", "timing")

    def __init__(self, native: Any, device: CudaDevice, timing: bool) -> None:
        self.native = native
        self.device = device
        self.timing = timing
        self.recorded = False
        self.capture: CudaCapture | None = None  # the capture that recorded the event last


def _complete(late: Late, queue: _CudaStream, stream: int) -> None:
    """Fill in the parameters that are known only at a launch."""
    if late.scratch:
        at = queue.device.scratch_of(stream, late.scratch, queue.native)
        ADDRESS.pack_into(late.params, late.scratch_at, at)
    if late.guards:
        mark(late.params, late.guards, queue.device.assertions.note_launch())


class CudaDriver:
    """See the module's docstring; contracts in `flambeau.driver.api.Driver`.

    kernel_cache: the folder that compiled kernels are kept in; None keeps none.
    """

    name = "cuda"
    observes_blocks = False
    runs_bodies = False

    def __init__(self, kernel_cache: Path | None = None) -> None:
        self._contexts = contexts = Contexts()
        # local copies, because each launch reads them
        self._several, self._thread = contexts.several, contexts.thread
        self._handles = itertools.count(_FIRST_HANDLE)
        self._queues = {
            1 + d.index: _CudaStream(1 + d.index, cu.CUstream(0), d, default=True) for d in contexts.devices
        }
        self._stopped: dict[
            int, _CudaStream
        ] = {}  # stream handle -> stream whose device had a failed assertion and runs nothing more
        self._events: dict[int, _Event] = {}
        self._graphs: dict[int, CudaGraph] = {}
        self._captures: dict[int, CudaCapture] = {}  # stream that began the capture -> capture
        self._memory = CudaAllocations(contexts, self._outside_capture)
        self.functions = Functions(kernel_cache)  # also used by the builders of kernels
        self._host_calls = HostCalls()
        self._communicators = NcclCommunicators()

    # -- devices --------------------------------------------------------------------------------------
    def device_count(self) -> int:
        self._contexts.check_open()
        return len(self._contexts.devices)

    def device_properties(self, index: int) -> DeviceProperties:
        return self._contexts.device(index).properties

    def device_sync(self, index: int) -> None:
        device = self._contexts.device(index)
        if device.context is not None:
            self._contexts.settle(device)
        self._raise_late(device)

    def mem_info(self, index: int) -> tuple[int, int]:
        self._contexts.enter(self._contexts.device(index))
        free, total = check(cu.cuMemGetInfo())
        return int(free), int(total)

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        return nvml.processes(self.device_properties(index).uuid)

    def close(self) -> None:
        """Close all devices. Errors of unfinished work are not raised here; call `device_sync` before."""
        if self._contexts.closed:
            return
        self._contexts.leave()
        for comm in self._communicators.all():
            with suppress(DriverError):
                self.comm_destroy(comm, abort=self.comm_error(comm) is not None)
        for device in self._contexts.devices:
            if device.context is not None:
                self._give_back(device)
        self._contexts.closed = True
        self._memory.clear()
        for table in (self._queues, self._stopped, self._events, self._graphs, self._captures):
            table.clear()

    def _give_back(self, device: CudaDevice) -> None:
        """Free everything of one device, in the order in which its work may need it. Failures are ignored."""
        self._contexts.enter(device)
        cu.cuCtxSynchronize()
        for graph in [g for g in self._graphs.values() if g.device is device]:
            with suppress(DriverError):
                graph.destroy()
        for queue in [q for q in (*self._queues.values(), *self._stopped.values()) if q.device is device]:
            device.drop_scratch(queue.handle, cu.CUstream(0) if queue.borrowed else queue.native)
            if not queue.default and not queue.borrowed:
                cu.cuStreamDestroy(queue.native)
        for event in [e for e in self._events.values() if e.device is device]:
            cu.cuEventDestroy(event.native)
        self._memory.drop(device)
        self.functions.drop()
        device.close_pool()
        cu.cuDevicePrimaryCtxRelease(device.handle)
        device.context = None

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        return self._memory.allocate(index, nbytes)

    def mem_free(self, ptr: int) -> None:
        self._memory.free(ptr)

    def range_page(self, index: int) -> int:
        return page_of(self._contexts.device(index))

    def range_reserve(self, index: int, nbytes: int) -> int:
        return self._memory.reserve(index, nbytes)

    def range_map(self, ptr: int, nbytes: int) -> None:
        self._memory.map(ptr, nbytes)

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        self._memory.unmap(ptr, nbytes)

    def range_release(self, ptr: int) -> None:
        self._memory.unreserve(ptr)

    def host_alloc(self, nbytes: int) -> HostMemory:
        return self._memory.allocate_host(nbytes)

    def host_free(self, memory: HostMemory) -> None:
        self._memory.free_host(memory)

    def host_pinned(self, ptr: int, nbytes: int) -> bool:
        return self._memory.is_pinned(ptr, nbytes)

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        pass

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        pass

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
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
        return 1 + self._contexts.device(index).index

    def stream_create(self, index: int, priority: int) -> int:
        device = self._contexts.device(index)
        self._contexts.enter(device)
        native = check(cu.cuStreamCreateWithPriority(_NON_BLOCKING, priority))
        handle = next(self._handles)
        self._queues[handle] = _CudaStream(handle, native, device)
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
        device = self._contexts.device(index)
        if native in (0, 1):  # cudaStreamLegacy
            return self.stream_default(index)
        for queue in list(self._queues.values()):
            if queue.device is device and int(queue.native) == native:
                return queue.handle
        handle = next(self._handles)
        self._queues[handle] = _CudaStream(handle, cu.CUstream(native), device, borrowed=True)
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
            self._contexts.enter(
                queue.device
            )  # last, because a default stream is that of the current context, whatever the event's is
        (code,) = cu.cuStreamWaitEvent(queue.native, found.native, 0)
        if code:
            raise error_of(code)
        if found.capture is not None and found.capture.active:
            found.capture.join(stream, queue.device)

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        device = self._contexts.device(index)
        if timing and interprocess:
            raise DriverError(TIMED_INTERPROCESS)
        self._contexts.enter(device)
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

    def event_mark(self, event: int, stream: int) -> None:
        """Record an event after a collective on the stream, whose device's context is current."""
        (code,) = cu.cuEventRecord(self._events[event].native, self._queues[stream].native)
        if code:
            raise error_of(code)

    def event_ended(self, event: int) -> bool:
        """Return True if an event is done, for a thread that only looks on: it neither raises nor takes what others
        wait for.

        Another thread's capture goes on. True for a destroyed event, and on a device that has failed.
        """
        found = self._events.get(event)
        if found is None:
            return True
        self._contexts.enter(found.device)
        cu.cuThreadExchangeStreamCaptureMode(MODES["thread_local"])
        (code,) = cu.cuEventQuery(found.native)
        return code != NOT_READY

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
            if not self.event_query(start):
                raise error_of(NOT_READY)
            return 0
        return round(check(cu.cuEventElapsedTime(*events)) * 1e6)

    # -- other processes ------------------------------------------------------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        return self._memory.export(ptr)

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        return self._memory.open(index, handle)

    def ipc_close(self, ptr: int) -> None:
        self._memory.close(ptr)

    def ipc_event(self, event: int) -> bytes:
        return ipc_handles.event_handle(self._event(event).native)

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        device = self._contexts.device(index)
        self._contexts.enter(device)
        native = ipc_handles.open_event(handle)
        event = next(self._handles)
        self._events[event] = _Event(native, device, timing=False)
        return event

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> CudaExecutable:
        device = self._contexts.device(index)
        launch = launch.with_(capability=device.capability)
        exe = CudaExecutable(launch, index)
        self._contexts.enter(device)
        with self._outside_capture():
            built = build.build(launch, device, self)
            if isinstance(built, KernelProgram):
                exe.prepare(built, partial(cu.cuLaunchKernel, self.functions.of(device, launch, built)))
                exe.launch_on = self._launcher_of_kernel(exe)
            else:
                exe.run = built
                exe.launch_on = self._launcher_of_run(built)
        if launch.kernel.draws:
            exe.launch_on = self._launcher_of_draws(exe, device, exe.launch_on)
        return exe

    def generic(self, launch: Launch, index: int) -> Generic | None:
        device = self._contexts.device(index)
        launch = launch.with_(capability=device.capability)
        self._contexts.enter(device)
        with self._outside_capture():
            built = build.build_kernels(launch, device)
            if built is None:
                return None
            if isinstance(built, KernelPlan):
                if launch.kernel.draws:  # captures cannot contain these
                    return None
                numbers, run_of_shape = sequence(launch, built, device, self.functions.of)
                return numbers, lambda *given: self._launcher_of_run(run_of_shape(*given))
            wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)]
            function = self.functions.of(device, launch, built)
            kernel = GenericKernel(built, function, len(launch.operands), wire)
        launcher = self._launcher_of_shapes(kernel, "dd" not in wire)
        return kernel.numbers, self._draws_of_shapes(
            kernel, device, launcher
        ) if launch.kernel.draws else launcher

    def unload(self, exe: CudaExecutable) -> None:
        self._contexts.check_open()  # compiled kernels are shared by many launches and stay until the driver closes
        close = getattr(exe.run, "close", None)
        if close is not None:
            self._contexts.enter(self._contexts.devices[exe.index])
            close()

    def launch(self, exe: CudaExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        exe.launch_on(ptrs, scalars, stream)

    def launcher(self, exe: CudaExecutable) -> Launcher:
        return exe.launch_on

    def _launcher_of_kernel(self, exe: CudaExecutable) -> Launcher:
        """Return a launcher with everything bound that a launch needs: each attribute lookup takes a tenth of a
        launch.
        """
        queues, contexts = self._queues, self._contexts
        several, thread, enter = contexts.several, contexts.thread, contexts.enter
        lock, pack, flat, late, call, address = exe.lock, exe.pack, exe.flat, exe.late, exe.call, exe.address

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            queue = queues.get(stream) or self._queue(stream)
            if several or not thread.entered:
                enter(queue.device)
            with lock:
                if scalars:
                    pack(*ptrs, *(scalars if flat else flatten_scalars(scalars)))
                else:  # written out, because one more unpacking takes measurable time
                    pack(*ptrs)
                if late is not None:
                    _complete(late, queue, stream)
                (code,) = call(queue.native, address, 0)
            if code:
                raise error_of(code)

        launch.keep = exe.keep  # type: ignore[attr-defined]  # `address` is its; the executable may go before
        return launch

    def _launcher_of_shapes(self, kernel: GenericKernel, flat: bool) -> Callable[..., Launcher]:
        """Return a function that creates the launcher of a shape. All shapes share the kernel's buffer of
        parameters.
        """
        queues, contexts, lock = self._queues, self._contexts, kernel.lock
        several, thread, enter = contexts.several, contexts.thread, contexts.enter
        pack, guards, address = kernel.pack, kernel.guards, kernel.address
        call, function, block, shared = cu.cuLaunchKernel, kernel.function, kernel.block, kernel.shared

        def launch(
            x: int, y: int, z: int, tail: bytes, late: Late | None,
            ptrs: Sequence[int], scalars: Sequence[Any], stream: int,
        ) -> None:  # fmt: skip
            queue = queues.get(stream) or self._queue(stream)
            if several or not thread.entered:
                enter(queue.device)
            with lock:
                if scalars:
                    pack(*ptrs, *(scalars if flat else flatten_scalars(scalars)), tail)
                else:
                    pack(*ptrs, tail)
                if late is not None:
                    _complete(late, queue, stream)
                (code,) = call(function, x, y, z, block, 1, 1, shared, queue.native, address, 0)
            if code:
                raise error_of(code)

        def launcher(grid: tuple[int, int, int], scratch: int, tail: bytes) -> Launcher:
            late = Late(kernel.params, scratch, kernel.scratch_at, guards) if scratch or guards else None
            return partial(launch, *grid, tail, late)

        launch.keep = kernel.keep  # type: ignore[attr-defined]  # `address` is its
        return launcher

    def _draws_of_shapes(
        self, kernel: GenericKernel, device: CudaDevice, launcher: Callable[..., Launcher]
    ) -> Callable[..., Launcher]:
        """Return a function that creates the launcher of a shape of a kernel that draws random numbers."""

        def launcher_of_draws(grid: tuple[int, int, int], scratch: int, tail: bytes) -> Launcher:
            plain = launcher(grid, scratch, tail)
            return self._launcher_of_draws(KernelOfShape(kernel, tail), device, plain)

        return launcher_of_draws

    def _launcher_of_run(self, run: build.Run) -> Launcher:
        queues, contexts = self._queues, self._contexts
        several, thread, enter = contexts.several, contexts.thread, contexts.enter

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            queue = queues.get(stream) or self._queue(stream)
            if several or not thread.entered:
                enter(queue.device)
            run(ptrs, scalars, queue.native, stream)

        return launch

    def _launcher_of_draws(
        self, exe: CudaExecutable | KernelOfShape, device: CudaDevice, plain: Launcher
    ) -> Launcher:
        """Return a launcher that reports kernels with random draws to captures, whose graphs update the seeds."""
        captures = device.captures

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            capture = captures.get(stream)
            if capture is None:
                plain(ptrs, scalars, stream)
            elif isinstance(exe, CudaExecutable) and exe.run is not None:
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
        capture = queue.device.captures.get(stream)
        self._host_calls.queue(next(self._handles), call, queue.native, capture)

    # -- graphs ---------------------------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        queue = self._queue(stream)
        if mode not in MODES:
            raise DriverError(f"capture_begin: the mode must be one of {tuple(MODES)}, not {mode!r}")
        if queue.default or stream in queue.device.captures:
            raise DriverError(UNSUPPORTED)
        check(cu.cuStreamBeginCapture(queue.native, MODES[mode]))
        capture = self._captures[stream] = CudaCapture()
        capture.join(stream, queue.device)

    def capture_end(self, stream: int) -> int:
        queue = self._queue(stream)
        capture = self._captures.pop(stream, None)
        if capture is None:
            raise DriverError(f"CUDA error: invalid argument: no capture began on stream {stream}")
        code, native = cu.cuStreamEndCapture(queue.native)
        capture.leave()
        try:
            graph = CudaGraph(check((code, native)), queue.device, capture)
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
        if found.capture.calls:  # launches under way may still call them
            check(cu.cuCtxSynchronize())
        found.destroy()
        self._forget_capture(found.capture)
        del self._graphs[graph]

    def _graph(self, graph: int) -> CudaGraph:
        found = self._graphs.get(graph)
        if found is None:
            self._contexts.check_open()
            raise DriverError(f"{graph} is no graph of the cuda driver, or was destroyed")
        self._contexts.enter(found.device)
        return found

    def _forget_capture(self, capture: CudaCapture) -> None:
        capture.release()
        self._host_calls.forget(capture)

    def _outside_capture(self) -> AbstractContextManager[None]:
        """Return a context in which driver calls do not become part of a capture; see `Driver.capture_begin`."""
        return relax_capture_mode() if self._captures else nullcontext()

    # -- collectives ----------------------------------------------------------------------------------
    def comm_id(self) -> bytes:
        self._contexts.check_open()
        return self._communicators.unique()

    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        for _, index in members:
            self._contexts.device(index)
        handles = [next(self._handles) for _ in members]
        self._communicators.join(unique, size, members, self._contexts.enter_at, handles)
        return handles

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        self._contexts.check_open()
        member = self._communicators.find(comm)
        self._contexts.enter_at(member.index)
        queues = [q for q in map(self._queues.get, member.streams) if q is not None]
        if not abort:
            for queue in queues:
                check(cu.cuStreamSynchronize(queue.native))
        elif any(cu.cuStreamQuery(queue.native)[0] == NOT_READY for queue in queues):
            self._host_calls.raised.append(DriverError(_ABORTED))
        self._communicators.leave(comm, abort)

    def comm_forget(self, comm: int) -> None:
        """Drop a communicator at the end of the process: `comm_destroy` may wait for members that never call it."""
        self._communicators.forget(comm)

    def comm_error(self, comm: int) -> str | None:
        self._contexts.check_open()
        return self._communicators.error(comm)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        queues = [self._queue(stream) for _, _, stream in parts]
        placed = [
            (comm, part, queue.device.index, stream, queue.native)
            for (comm, part, stream), queue in zip(parts, queues, strict=True)
        ]
        self._communicators.run(placed, self._contexts.enter_at)

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        return self._memory.peer_can(index, peer)

    def peer_enable(self, index: int, peer: int) -> None:
        self._memory.peer_enable(index, peer)

    # -- checks ---------------------------------------------------------------------------------------
    def _is_done(self, code: Any, device: CudaDevice) -> bool:
        if code == NOT_READY:
            return False
        if code:
            raise error_of(code)
        self._raise_late(device)
        return True

    def _raise_late(self, device: CudaDevice) -> None:
        """Raise the errors of assertions in kernels and of host functions, after the device's work is done."""
        if device.assertions.words[0]:
            for queue in [queue for queue in list(self._queues.values()) if queue.device is device]:
                self._stopped[queue.handle] = queue
                self._queues.pop(queue.handle, None)  # another thread may run this too
            raise device.assertions.error(device.index)
        if self._host_calls.raised:
            raise self._host_calls.raised.pop(0)

    def _queue(self, stream: int) -> _CudaStream:
        found = self._queues.get(stream)
        if found is None:
            self._contexts.check_open()
            if stream in self._stopped:
                device = self._stopped[stream].device
                raise device.assertions.error(device.index)
            raise DriverError(f"{stream} is no stream of the cuda driver, or was destroyed")
        if self._several or not self._thread.entered:
            self._contexts.enter(found.device)
        return found

    def _event(self, event: int) -> _Event:
        found = self._events.get(event)
        if found is None:
            self._contexts.check_open()
            raise DriverError(f"{event} is no event of the cuda driver, or was destroyed")
        if self._several or not self._thread.entered:
            self._contexts.enter(found.device)
        return found
