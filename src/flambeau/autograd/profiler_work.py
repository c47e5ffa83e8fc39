"""`Work`: what devices did while a profile ran, and the call that enqueued each piece of it.

A machine numbers its commands as they are given, so those of a call are the numbers that were given while it ran, on
its stream. Launches notify subscribers (runtime/hooks/launch_hooks.py). While a profile runs, the contexts use a
`ProfiledDriver`, which reports copies, fills, graphs and collectives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol

from flambeau.autograd.profiler_events import DeviceType, FunctionEvent, Interval
from flambeau.core.callsite import Site
from flambeau.driver.protocol import Collective, Driver, Executable, HostMemory, Launch, Launcher
from flambeau.observe.driver_proxy import Forward
from flambeau.observe.tracing.driver_calls import GIVE, CommandCounter, Request, Simulated
from flambeau.observe.tracing.gpu_timing import Measured
from flambeau.observe.tracing.timeline import MARKERS
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context

_LABELS = {
    "copy_in": "Memcpy HtoD (Pageable -> Device)",
    "copy_out": "Memcpy DtoH (Device -> Pageable)",
    "copy": "Memcpy DtoD (Device -> Device)",
    "fill": "Memset (Device)",
}
_COPIED = "aten::copy_"  # PyTorch's name for the host's side of all copies
_NOWHERE: Site = ((lambda: None).__code__, 0)  # a profile records call sites itself


class WorkCallback(Protocol):
    """A function that returns a context manager around a driver call that enqueues work.

    Args:
        kind: The kind of the driver request, such as "copy".
        call: PyTorch's name of the host's event.
        label: PyTorch's name of the device's event.
        where: The context of the stream; None if it is unknown.
    """

    def __call__(
        self, kind: str, call: str, label: str, stream: int, where: Context | None, nbytes: int, /
    ) -> AbstractContextManager[object]: ...


class Work:
    """The work of some devices, from now until `stop`."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        bare = system.bare_driver()
        self._source: CommandCounter = Simulated(bare) if system.is_virtual() else Measured(bare)
        self._device_indices = {context.driver_index: context.index for context in contexts}
        self._issued: dict[int, list[tuple[Request, FunctionEvent, str]]] = {}  # by stream

    def begin(self, request: Request, call: FunctionEvent, label: str = "") -> None:
        """Handle the beginning of a call that enqueues work; `label` names a copy or a fill."""
        request.first = self._source.next_seq()
        self._issued.setdefault(request.stream, []).append((request, call, label))
        self._source.before(request)

    def end(self, request: Request, gave: bool) -> None:
        """Handle the end of the call, which enqueued work or raised."""
        self._source.after(request, gave)
        request.last = self._source.next_seq()

    def stop(self) -> Iterator[FunctionEvent]:
        """Yield the work that ran, ordered by device, stream and request, and add it to the kernels of its call."""
        records = self._source.records()
        self._source.close()
        for r in sorted(records, key=lambda r: (r.index, r.stream, r.seq)):
            if r.kind in MARKERS or r.index not in self._device_indices:
                continue
            call, label = self._issuing_call(r.stream, r.seq)
            name = (label or _LABELS[r.kind]) if r.kind in _LABELS else r.name
            span = Interval(r.start_ns / 1000, r.end_ns / 1000)
            nbytes = r.nbytes if r.kind in _LABELS else 0
            event = FunctionEvent(
                name, span, r.stream, DeviceType.CUDA, self._device_indices[r.index], nbytes=nbytes
            )
            if call is not None:
                call.kernels.append(event)
            yield event

    def _issuing_call(self, stream: int, seq: int) -> tuple[FunctionEvent | None, str]:
        """Return the call that enqueued a command, and its label for the command."""
        given = self._issued.get(stream, [])
        at = bisect_right(given, seq, key=lambda entry: entry[0].first) - 1
        if at < 0 or seq >= given[at][0].last:
            return None, ""
        return given[at][1:]


def request_of(kind: str, stream: int, index: int, nbytes: int = 0, launch: Launch | None = None) -> Request:
    """Return a request without thread and line, which the profile's events have."""
    request = Request(GIVE, kind, 0, _NOWHERE, stream, index)
    request.nbytes, request.launch = nbytes, launch
    return request


class ProfiledDriver(Forward):
    """A driver that reports copies, fills, graphs and collectives to `on_work`, until that is None."""

    def __init__(self, inner: Driver, on_work: WorkCallback, contexts: Sequence[Context]) -> None:
        super().__init__(inner)
        self.detector: Any = getattr(inner, "detector", None)
        self.on_work: WorkCallback | None = on_work
        self._addresses = _AddressMap(contexts)

    def _notify(
        self, kind: str, call: str, label: str, stream: int, ptr: int = 0, nbytes: int = 0
    ) -> AbstractContextManager[object]:
        if self.on_work is None:
            return nullcontext()
        context = next((s.context for s in current.local.streams if s.handle == stream), None)
        return self.on_work(kind, call, label, stream, context or self._addresses.of(ptr), nbytes)

    def launcher(self, exe: Executable) -> Launcher:
        return self.inner.launcher(exe)  # launch hooks report launches

    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        label = f"Memcpy HtoD ({_kind(source)} -> Device)"
        with self._notify("copy_in", _COPIED, label, stream, target, source.nbytes):
            self.inner.copy_in(target, source, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        label = f"Memcpy DtoH (Device -> {_kind(target)})"
        with self._notify("copy_out", _COPIED, label, stream, source, target.nbytes):
            self.inner.copy_out(target, source, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        way = "DtoD" if self._addresses.of(target) is self._addresses.of(source) else "PtoP"
        label = f"Memcpy {way} (Device -> Device)"
        with self._notify("copy", _COPIED, label, stream, source, nbytes):
            self.inner.copy(target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        with self._notify("fill", "aten::fill_", _LABELS["fill"], stream, target, nbytes):
            self.inner.fill(target, byte, nbytes, stream)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        with self._notify("host function", "cudaLaunchHostFunc", "", stream):
            self.inner.host_call(call, stream)

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        with self._notify("graph", "cudaGraphLaunch", "", stream):
            self.inner.graph_launch(graph, stream, seeds)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        by_stream: dict[int, list[Collective]] = {}
        for _, part, stream in parts:
            by_stream.setdefault(stream, []).append(part)
        with ExitStack() as notified:
            for stream, group in by_stream.items():
                first, nbytes = group[0], sum([part.count * part.dtype.itemsize for part in group])
                at = first.source or first.target
                notified.enter_context(self._notify(first.kind, f"nccl:{first.kind}", "", stream, at, nbytes))
            self.inner.collective(parts)


def _kind(memory: HostMemory) -> str:
    return "Pinned" if memory.pinned else "Pageable"


class _AddressMap:
    """A map from addresses to devices. Segments that were found are cached, because a search through all takes time."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self._contexts = contexts
        self._known: list[tuple[int, int, Context]] = []  # begin, end

    def of(self, ptr: int) -> Context | None:
        """Return the context of the device of an address; None if no allocator of this process owns it."""
        for begin, end, context in self._known:
            if begin <= ptr < end:
                return context
        for context in self._contexts:
            allocator: Any = context.allocator
            for blocks in allocator.segments():
                begin, end = blocks[0].ptr, blocks[-1].ptr + blocks[-1].size
                if begin <= ptr < end:
                    self._known.append((begin, end, context))
                    return context
        return None
