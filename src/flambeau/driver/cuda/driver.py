"""`CudaDriver`: the driver's contract on real GPUs, over NVIDIA's cuda-bindings.

Its contexts, memory, streams, launchers, loaded kernels and host functions have separate owners; here are events and
graphs.

# Note [Handles of real GPUs]
Handles are counted, not pointers: a native handle is used again after it is destroyed, and a stale one must be
refused. The tables map them to the native objects; a look-up costs less than the conversion of an int.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import TIMED_INTERPROCESS, DriverError
from flambeau.core.meta import Meta
from flambeau.driver.cuda import kernel_builder
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
from flambeau.driver.cuda.device.launchers import Launchers
from flambeau.driver.cuda.device.program import (
    CudaExecutable,
    GenericKernel,
    KernelProgram,
    wire_format,
)
from flambeau.driver.cuda.device.streams import CudaStreams
from flambeau.driver.cuda.device.virtual_memory import page_of
from flambeau.driver.cuda.libraries import cudnn_recurrent, handles, nvml
from flambeau.driver.cuda.libraries.nccl import NcclCommunicators
from flambeau.driver.protocol import (
    Collective,
    DeviceProperties,
    Generic,
    HostMemory,
    Launch,
    Launcher,
    RecurrentMemory,
    RecurrentNetwork,
)

_FIRST_HANDLE = 4096  # handles of default streams are 1 + index

_ABORTED = (
    "NCCL: a communicator was aborted while a stream that it used had work left: a collective among that has not "
    "happened, and its tensors hold anything"
)


class _Event:
    __slots__ = ("capture", "device", "native", "recorded", "timing")

    def __init__(self, native: Any, device: CudaDevice, timing: bool) -> None:
        self.native = native
        self.device = device
        self.timing = timing
        self.recorded = False
        self.capture: CudaCapture | None = None  # the capture that recorded the event last


class CudaDriver:
    """The driver of NVIDIA GPUs, an implementation of `flambeau.driver.protocol.Driver`.

    Args:
        kernel_cache: The folder of compiled kernels; None keeps none.
    """

    name = "cuda"
    observes_blocks = False
    runs_bodies = False

    def __init__(self, kernel_cache: Path | None = None) -> None:
        self._contexts = contexts = Contexts()
        # local copies, because each launch reads them
        self._several, self._thread = contexts.several, contexts.thread
        self._handles = itertools.count(_FIRST_HANDLE)
        self._events: dict[int, _Event] = {}
        self._graphs: dict[int, CudaGraph] = {}
        self._captures: dict[int, CudaCapture] = {}  # stream that began the capture -> capture
        self._memory = CudaAllocations(contexts, self._outside_capture)
        self.functions = Functions(kernel_cache)  # also used by the builders of kernels
        self._host_calls = HostCalls()
        self._streams = CudaStreams(contexts, self._handles, self._host_calls.raised)
        self._launchers = Launchers(contexts, self._streams)
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
        self._streams.raise_late(device)

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
        self.functions.wait()
        self._contexts.leave()
        for comm in self._communicators.all():
            with suppress(DriverError):
                self.comm_destroy(comm, abort=self.comm_error(comm) is not None)
        for device in self._contexts.devices:
            if device.context is not None:
                self._give_back(device)
        self._contexts.closed = True
        self._memory.clear()
        for table in (
            self._streams.queues,
            self._streams.stopped,
            self._events,
            self._graphs,
            self._captures,
        ):
            table.clear()

    def _give_back(self, device: CudaDevice) -> None:
        """Free all resources of one device, in the order in which its work may need them. Errors are ignored."""
        self._contexts.enter(device)
        cu.cuCtxSynchronize()
        for graph in [g for g in self._graphs.values() if g.device is device]:
            with suppress(DriverError):
                graph.destroy()
        for queue in self._streams.of(device):
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

    def host_register(self, ptr: int, nbytes: int) -> None:
        self._memory.register_host(ptr, nbytes)

    def host_unregister(self, ptr: int) -> int:
        return self._memory.unregister_host(ptr)

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
        queue = self._streams.find(stream)
        if not source.nbytes:
            return
        if not source.pinned:
            refuse(queue.device.captures, stream)
        check(cu.cuMemcpyHtoDAsync(target, source.ptr, source.nbytes, queue.native))
        if not source.pinned and queue.device.reads_pageable:
            check(cu.cuStreamSynchronize(queue.native))

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        queue = self._streams.find(stream)
        if not target.nbytes:
            return
        if not target.pinned:
            refuse(queue.device.captures, stream)
        check(cu.cuMemcpyDtoHAsync(target.ptr, source, target.nbytes, queue.native))
        if not target.pinned:
            check(cu.cuStreamSynchronize(queue.native))
            self._streams.raise_late(queue.device)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        queue = self._streams.find(stream)
        if nbytes:
            check(cu.cuMemcpyAsync(target, source, nbytes, queue.native))

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        queue = self._streams.find(stream)
        if nbytes:
            check(cu.cuMemsetD8Async(target, byte & 255, nbytes, queue.native))

    # -- streams --------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        return 1 + self._contexts.device(index).index

    def stream_create(self, index: int, priority: int) -> int:
        return self._streams.create(self._contexts.device(index), priority)

    def stream_destroy(self, stream: int) -> None:
        self._streams.destroy(stream)

    def stream_native(self, stream: int) -> int:
        return self._streams.native_of(stream)

    def stream_adopt(self, index: int, native: int) -> int:
        device = self._contexts.device(index)
        if native in (0, 1):  # cudaStreamLegacy
            return self.stream_default(index)
        return self._streams.adopt(device, native)

    def stream_query(self, stream: int) -> bool:
        queue = self._streams.find(stream)
        (code,) = cu.cuStreamQuery(queue.native)
        return self._is_done(code, queue.device)

    def stream_sync(self, stream: int) -> None:
        queue = self._streams.find(stream)
        check(cu.cuStreamSynchronize(queue.native))
        self._streams.raise_late(queue.device)

    def stream_wait(self, stream: int, event: int) -> None:
        queue = self._streams.queues.get(stream) or self._streams.find(stream)
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
        queue, found = self._streams.find(stream), self._event(event)
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
        self._streams.raise_late(found.device)

    def event_mark(self, event: int, stream: int) -> None:
        """Record an event after a collective on the stream, whose device's context is current."""
        (code,) = cu.cuEventRecord(self._events[event].native, self._streams.queues[stream].native)
        if code:
            raise error_of(code)

    def event_ended(self, event: int) -> bool:
        """Return True if an event is complete. The call raises nothing and takes no pending error, so that a watchdog
        can poll.

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
            built = kernel_builder.build(launch, device, self)
            if isinstance(built, KernelProgram):
                exe.prepare(built, self.functions.of(device, launch, built))
                exe.launch_on = self._launchers.of_kernel(exe)
            else:
                exe.run = built
                exe.launch_on = self._launchers.of_run(built)
        if launch.kernel.draws:
            exe.launch_on = self._launchers.of_draws(exe, device, exe.launch_on)
        return exe

    def generic(self, launch: Launch, index: int) -> Generic | None:
        device = self._contexts.device(index)
        launch = launch.with_(capability=device.capability)
        self._contexts.enter(device)
        with self._outside_capture():
            built = kernel_builder.build_kernels(launch, device)
            if built is None:
                planned = kernel_builder.build_structure(launch, device, self)
                if planned is None:
                    return None
                numbers, run_of_shape = planned
                return numbers, lambda *given: self._launchers.of_run(run_of_shape(*given))
            if isinstance(built, KernelPlan):
                if launch.kernel.draws:  # captures cannot contain these
                    return None
                numbers, run_of_shape = sequence(launch, built, device, self.functions.of)
                return numbers, lambda *given: self._launchers.of_run(run_of_shape(*given))
            wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)]
            function = self.functions.of(device, launch, built)
            kernel = GenericKernel(built, function, len(launch.operands), wire)
        launcher = self._launchers.of_shapes(kernel, "dd" not in wire)
        if launch.kernel.draws:
            launcher = self._launchers.of_shapes_that_draw(kernel, device, launcher)
        return kernel.numbers, launcher

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

    def library_handle(self, name: str, stream: int) -> int:
        queue = self._streams.find(stream)
        return handles.handle_of(queue.device, name, int(queue.native))

    def recurrent_memory(self, index: int, network: RecurrentNetwork) -> RecurrentMemory | None:
        device = self._contexts.device(index)
        self._contexts.enter(device)
        with self._outside_capture():
            return cudnn_recurrent.memory_of(device, network)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        queue = self._streams.find(stream)
        capture = queue.device.captures.get(stream)
        self._host_calls.queue(next(self._handles), call, queue.native, capture)

    # -- graphs ---------------------------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        queue = self._streams.find(stream)
        if mode not in MODES:
            raise DriverError(f"capture_begin: the mode must be one of {tuple(MODES)}, not {mode!r}")
        if queue.default or stream in queue.device.captures:
            raise DriverError(UNSUPPORTED)
        check(cu.cuStreamBeginCapture(queue.native, MODES[mode]))
        capture = self._captures[stream] = CudaCapture()
        capture.join(stream, queue.device)

    def capture_end(self, stream: int) -> int:
        queue = self._streams.find(stream)
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
        return stream in self._streams.find(stream).device.captures

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        found, queue = self._graph(graph), self._streams.find(stream)
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
        if found.capture.calls:  # running launches may still call them
            check(cu.cuCtxSynchronize())
        found.destroy()
        self._forget_capture(found.capture)
        del self._graphs[graph]

    def _graph(self, graph: int) -> CudaGraph:
        found = self._graphs.get(graph)
        if found is None:
            self._contexts.check_open()
            raise DriverError(f"{graph} is not a graph of the cuda driver, or was destroyed")
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
        queues = [q for q in map(self._streams.queues.get, member.streams) if q is not None]
        if not abort:
            for queue in queues:
                check(cu.cuStreamSynchronize(queue.native))
        elif any(cu.cuStreamQuery(queue.native)[0] == NOT_READY for queue in queues):
            self._host_calls.raised.append(DriverError(_ABORTED))
        self._communicators.leave(comm, abort)

    def comm_forget(self, comm: int) -> None:
        """Drop a communicator at the end of the process, because `comm_destroy` may wait for members that never call
        it.
        """
        self._communicators.forget(comm)

    def comm_error(self, comm: int) -> str | None:
        self._contexts.check_open()
        return self._communicators.error(comm)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        queues = [self._streams.find(stream) for _, _, stream in parts]
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
        self._streams.raise_late(device)
        return True

    def _event(self, event: int) -> _Event:
        found = self._events.get(event)
        if found is None:
            self._contexts.check_open()
            raise DriverError(f"{event} is not an event of the cuda driver, or was destroyed")
        if self._several or not self._thread.entered:
            self._contexts.enter(found.device)
        return found
