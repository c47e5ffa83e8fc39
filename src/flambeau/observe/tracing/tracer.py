"""The tracer: an observer that records each call of the program for a timeline, with call site, time and
commands.

It is the outermost driver of a machine. A `CommandCounter` times the devices' commands: a virtual machine
by its simulated clock, a real one by timing events. `trace.py` builds lanes, slices and arrows from the
records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from flambeau.core.callsite import Site, caller, is_within
from flambeau.driver.protocol import Collective, Driver, Executable, HostMemory
from flambeau.observe.clocks import side_stream
from flambeau.observe.driver_proxy import Forward
from flambeau.observe.reporting.operator_names import noted_name
from flambeau.observe.tracing.driver_calls import (
    ASK,
    GIVE,
    MEMORY,
    NOWHERE,
    RECORD,
    SYNC,
    WAIT,
    CommandCounter,
    Request,
    Simulated,
)
from flambeau.observe.tracing.gpu_timing import Measured

Change = tuple[int, int, int, int]
"""A change of memory: host time, device (NOWHERE: pinned host memory), change of bytes in use, and of bytes
reserved.
"""


class Queue:
    """A stream: its device, its number among the side streams (0: default), whether a group owns it, its call
    site.
    """

    __slots__ = ("grouped", "index", "ordinal", "site")

    def __init__(self, index: int, ordinal: int, site: Site | None) -> None:
        self.index = index
        self.ordinal = ordinal
        self.site = site
        self.grouped = is_within("distributed")

    @property
    def name(self) -> str:
        if not self.ordinal:
            return "default stream"
        return side_stream(self.ordinal, self.grouped)


class DriverTracer(Forward):
    """An observer that records calls in `requests`, memory in `changes`, streams in `queues`, and times in
    `source`.

    Args:
        inner: The driver to observe.
        bare: The machine's driver below all observers.
        visible: Its indices of cuda:0, cuda:1 and so on.
        why: Returns the wait reason of the running call; "" if the program itself requested the wait.
    """

    def __init__(
        self, inner: Driver, bare: Driver, visible: Sequence[int], why: Callable[[], str] = str
    ) -> None:
        super().__init__(inner)
        self.observes_blocks = True
        self.detector: Any = getattr(inner, "detector", None)  # the race detector, if there is one inside
        self.requests: list[Request] = []
        self.changes: list[Change] = []
        self.queues: dict[int, Queue] = {}
        self.threads: dict[int, str] = {}
        self.source: CommandCounter = Simulated(bare) if bare.name == "virtual" else Measured(bare)
        self.visible = list(visible)
        self._why = why
        self._shown = {index: shown for shown, index in enumerate(visible)}
        self._made = dict.fromkeys(visible, 0)
        self._sizes: dict[int, tuple[int, int]] = {}  # address of an allocation -> device, bytes
        self._ranges: dict[int, tuple[int, int]] = {}  # address of a reserved range -> device, bytes
        for index in visible:
            self.queues[inner.stream_default(index)] = Queue(index, 0, None)

    def visible_index(self, index: int) -> int:
        """Return the index by which the program names a device."""
        return self._shown.get(index, index)

    # -- noting -----------------------------------------------------------------------------------------
    def _note(self, kind: str, name: str, stream: int = 0, index: int = NOWHERE, nbytes: int = 0) -> _Noting:
        """Return a context manager that records a call."""
        ident = threading.get_ident()
        if ident not in self.threads:
            self.threads[ident] = threading.current_thread().name
        if stream in self.queues:
            index = self.queues[stream].index
        request = Request(kind, name, ident, caller(2), stream, index)
        request.nbytes = nbytes
        request.reason = self._why()
        return _Noting(self, request)

    def _on_memory_change(self, index: int, used: int, reserved: int) -> None:
        """Record a change of memory. Takes no lock: destructors call it."""
        self.changes.append((self.source.clock(), index, used, reserved))

    # -- devices and memory -----------------------------------------------------------------------------
    def device_sync(self, index: int) -> None:
        with self._note(SYNC, "synchronize the device", index=index):
            self.inner.device_sync(index)

    def mem_alloc(self, index: int, nbytes: int) -> int:
        with self._note(MEMORY, "cudaMalloc", index=index, nbytes=nbytes):
            ptr = self.inner.mem_alloc(index, nbytes)
        self._sizes[ptr] = index, nbytes
        self._on_memory_change(index, 0, nbytes)
        return ptr

    def mem_free(self, ptr: int) -> None:
        index, nbytes = self._sizes.get(ptr, (NOWHERE, 0))
        with self._note(MEMORY, "cudaFree", index=index, nbytes=nbytes) as request:
            self.inner.mem_free(ptr)
            request.answered = True  # the call waits for the device's work
        self._sizes.pop(ptr, None)
        self._on_memory_change(index, 0, -nbytes)

    def range_reserve(self, index: int, nbytes: int) -> int:
        ptr = self.inner.range_reserve(index, nbytes)
        self._ranges[ptr] = index, nbytes
        return ptr

    def range_map(self, ptr: int, nbytes: int) -> None:
        index = self._owner(ptr)
        with self._note(MEMORY, "cuMemMap", index=index, nbytes=nbytes):
            self.inner.range_map(ptr, nbytes)
        self._on_memory_change(index, 0, nbytes)

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        index = self._owner(ptr)
        with self._note(MEMORY, "cuMemUnmap", index=index, nbytes=nbytes) as request:
            self.inner.range_unmap(ptr, nbytes)
            request.answered = True  # the call waits for the device's work
        self._on_memory_change(index, 0, -nbytes)

    def range_release(self, ptr: int) -> None:
        self.inner.range_release(ptr)
        self._ranges.pop(ptr, None)

    def _owner(self, ptr: int) -> int:
        """Return the device for which the address range around `ptr` was reserved; NOWHERE if none was."""
        found = [i for start, (i, nbytes) in self._ranges.items() if start <= ptr < start + nbytes]
        return found[0] if found else NOWHERE

    def host_alloc(self, nbytes: int) -> HostMemory:
        with self._note(MEMORY, "cudaHostAlloc", nbytes=nbytes):
            memory = self.inner.host_alloc(nbytes)
        self._on_memory_change(NOWHERE, 0, nbytes)
        return memory

    def host_free(self, memory: HostMemory) -> None:
        with self._note(MEMORY, "cudaFreeHost", nbytes=memory.nbytes):
            self.inner.host_free(memory)
        self._on_memory_change(NOWHERE, 0, -memory.nbytes)

    def host_register(self, ptr: int, nbytes: int) -> None:
        with self._note(MEMORY, "cudaHostRegister", nbytes=nbytes):
            self.inner.host_register(ptr, nbytes)

    def host_unregister(self, ptr: int) -> int:
        with self._note(MEMORY, "cudaHostUnregister"):
            return self.inner.host_unregister(ptr)

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        self.inner.block_alloc(ptr, nbytes, stream, written, pool)
        self._on_memory_change(self._device_of(stream), nbytes, 0)

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        self.inner.block_free(ptr, nbytes, stream, after)
        self._on_memory_change(self._device_of(stream), -nbytes, 0)

    def _device_of(self, stream: int) -> int:
        queue = self.queues.get(stream)
        return NOWHERE if queue is None else queue.index

    # -- copies and fills -------------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        with self._note(GIVE, "copy_in", stream, nbytes=source.nbytes):
            self.inner.copy_in(target, source, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        with self._note(GIVE, "copy_out", stream, nbytes=target.nbytes) as request:
            self.inner.copy_out(target, source, stream)
            request.answered = not target.pinned  # the host has waited for the copy

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._note(GIVE, "copy", stream, nbytes=nbytes):
            self.inner.copy(target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        with self._note(GIVE, "fill", stream, nbytes=nbytes):
            self.inner.fill(target, byte, nbytes, stream)

    # -- streams ----------------------------------------------------------------------------------------
    def stream_create(self, index: int, priority: int) -> int:
        handle = self.inner.stream_create(index, priority)
        self._made[index] += 1
        self.queues[handle] = Queue(index, self._made[index], caller())
        return handle

    def stream_adopt(self, index: int, native: int) -> int:
        handle = self.inner.stream_adopt(index, native)
        if handle not in self.queues:
            self._made[index] += 1
            self.queues[handle] = Queue(index, self._made[index], caller())
        return handle

    def stream_query(self, stream: int) -> bool:
        with self._note(ASK, "query a stream", stream) as request:
            request.answered = self.inner.stream_query(stream)
        return request.answered

    def stream_sync(self, stream: int) -> None:
        with self._note(SYNC, "synchronize a stream", stream):
            self.inner.stream_sync(stream)

    def stream_wait(self, stream: int, event: int) -> None:
        with self._note(WAIT, "wait", stream) as request:
            request.event = event
            self.inner.stream_wait(stream, event)

    # -- events -----------------------------------------------------------------------------------------
    def event_record(self, event: int, stream: int) -> None:
        with self._note(RECORD, "record", stream) as request:
            request.event = event
            self.inner.event_record(event, stream)

    def event_query(self, event: int, internal: bool = False) -> bool:
        if internal:
            return self.inner.event_query(event, internal)
        with self._note(ASK, "query an event") as request:
            request.event = event
            request.answered = self.inner.event_query(event)
        return request.answered

    def event_sync(self, event: int, internal: bool = False) -> None:
        with self._note(SYNC, "synchronize an event") as request:
            request.event = event
            self.inner.event_sync(event, internal)

    # -- kernels and graphs -----------------------------------------------------------------------------
    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        with self._note(GIVE, noted_name(exe.launch.kernel.name), stream) as request:
            request.launch = exe.launch
            self.inner.launch(exe, ptrs, scalars, stream)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        with self._note(GIVE, "host function", stream):
            self.inner.host_call(call, stream)

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        with self._note(GIVE, "graph", stream):
            self.inner.graph_launch(graph, stream, seeds)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        with ExitStack() as notes:
            for _, part, stream in parts:
                notes.enter_context(
                    self._note(GIVE, part.kind, stream, nbytes=part.count * part.dtype.itemsize)
                )
            self.inner.collective(parts)


class _Noting:
    """A context manager that records one call."""

    __slots__ = ("_request", "_tracer")

    def __init__(self, tracer: DriverTracer, request: Request) -> None:
        self._tracer = tracer
        self._request = request

    def __enter__(self) -> Request:
        request, source = self._request, self._tracer.source
        request.first, request.begin_ns = source.next_seq(), source.clock()
        source.before(request)
        return request

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        request, tracer = self._request, self._tracer
        request.end_ns = tracer.source.clock()
        tracer.source.after(request, error is None)
        request.last = tracer.source.next_seq()
        tracer.requests.append(request)
