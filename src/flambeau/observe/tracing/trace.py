"""A run as lanes, slices and arrows, built from a `DriverTracer`'s records. `chrome.py` and an HTML page write it.

Lanes are host threads and streams. Slices are calls on host threads; on streams they are commands, and the
times in which a stream waited for another. An arrow leads from a slice to one that could not begin (a wait
of a stream) or end (of the host) before it. All times are ns since the first call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flambeau.core.callsite import Site
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.observe.reporting.operator_names import noted_name
from flambeau.observe.reports import Race, RaceAccess
from flambeau.observe.tracing.driver_calls import ASK, GIVE, MEMORY, NOWHERE, RECORD, SYNC, Request
from flambeau.observe.tracing.range_recorder import AnnotatedRange, RangeRecorder
from flambeau.observe.tracing.timeline import MARKERS, CompletedCommand, Timeline
from flambeau.observe.tracing.tracer import DriverTracer, Queue

NAMES = {
    "copy_in": "copy to the device",
    "copy_out": "copy to the host",
    "copy": "copy between devices",
    "fill": "fill",
}


@dataclass(slots=True)
class TraceLane:
    """A host thread or stream. `index` is the device, NOWHERE for a host thread; `number` is the handle or
    thread number.
    """

    index: int
    number: int
    name: str
    site: Site | None = None  # where the stream was created

    @property
    def title(self) -> str:
        """Return the name of the lane in messages."""
        return f"thread {self.name}" if self.index == NOWHERE else f"the {self.name} of cuda:{self.index}"


@dataclass(slots=True)
class TraceSlice:
    """A call or a command in a lane.

    Attributes:
        kind: A command's kind ("kernel", "copy_in", ...), "wait" while a stream waits, or a call's ("give",
            "sync", ...).
        cause: The slice of the call that enqueued a command.
        target: The lane of the stream that a call refers to.
        detail: Shapes and dtypes.
        reason: See `runtime/streams/wait_reason.py`.
    """

    lane: int
    kind: str
    name: str
    begin_ns: int
    end_ns: int
    nbytes: int = 0
    site: Site | None = None
    cause: int = -1
    target: int = -1
    detail: str = ""
    reason: str = ""
    seq: int = -1


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from the end of one slice to another slice, by index. `kind` is "wait" (of a stream) or "sync"
    (of the host).
    """

    earlier: int
    later: int
    kind: str
    text: str


@dataclass
class TraceData:
    """A run, ready to be written.

    Attributes:
        memory: (time, device, bytes in use, bytes reserved) after each change.
        races: The races, with the slices of both accesses.
        simulated: True if the times are a virtual machine's.
        checked: True if races were detected.
    """

    devices: dict[int, str]
    simulated: bool
    checked: bool = False
    lanes: list[TraceLane] = field(default_factory=list)
    slices: list[TraceSlice] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    memory: list[tuple[int, int, int, int]] = field(default_factory=list)
    ranges: list[AnnotatedRange] = field(default_factory=list)
    races: list[tuple[Race, int | None, int | None]] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)


def trace_of(
    tracer: DriverTracer, ranges: RangeRecorder | None = None, races: Sequence[Race] | None = None
) -> TraceData:
    """Return the trace of a tracer's records, with the program's ranges and races. `races` is None if no detector ran.

    The machine's work must be done, and its driver still open.
    """
    return _Maker(tracer, ranges).build(races)


class _Maker:
    """The construction of a trace.

    Attributes:
        calls: Request -> index of its slice.
        owners: `seq` of a command -> the request that enqueued it.
        before: `seq` of an event's record -> the slice that precedes it on its stream.
        queues: Stream -> (`seq`, index) of its slices, in their order.
        work: Stream -> its slices that do work, by which reports of races number commands.
    """

    def __init__(self, tracer: DriverTracer, ranges: RangeRecorder | None) -> None:
        self.tracer, self.ranges = tracer, ranges
        self.requests = sorted(tracer.requests, key=lambda request: request.begin_ns)
        found = sorted(tracer.source.records(), key=lambda r: (r.index, r.stream, r.seq))
        self.records = [_with_noted_name(record) for record in found]
        simulated = tracer.name == "virtual"
        self.zero = 0 if simulated else min((r.begin_ns for r in self.requests), default=0)
        names = {tracer.visible_index(d): tracer.device_properties(d).name for d in tracer.visible}
        self.trace = TraceData(names, simulated, timeline=Timeline(self.records))
        self.lanes: dict[tuple[int, int], int] = {}
        self.calls: list[int] = []
        self.owners: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.queues: dict[int, tuple[list[int], list[int]]] = {}
        self.work: dict[int, list[int]] = {}
        self.details: dict[int, tuple[Launch, str]] = {}

    def build(self, races: Sequence[Race] | None) -> TraceData:
        trace = self.trace
        trace.checked = races is not None
        self._add_lanes()
        self._add_calls()
        self._find_owners()
        waits = self._add_commands()
        self._add_waits(waits)
        self._add_syncs()
        self._add_memory()
        if self.ranges is not None:
            trace.ranges = [self._place_range(found) for found in self.ranges.found]
        trace.races = [(race, self._side(race.first), self._side(race.second)) for race in races or ()]
        return trace

    # -- lanes ------------------------------------------------------------------------------------------
    def _add_lanes(self) -> None:
        threads = dict.fromkeys([*self.tracer.threads, *(self.ranges.threads if self.ranges else ())])
        for number, ident in enumerate(threads):
            self._lane(
                NOWHERE, ident, TraceLane(NOWHERE, number, self.tracer.threads.get(ident, f"thread {number}"))
            )
        queues = self.tracer.queues
        used = dict.fromkeys([(record.index, record.stream) for record in self.records])
        for index, handle in sorted(used, key=lambda key: (key[0], _rank(queues.get(key[1])), key[1])):
            queue = queues.get(handle)
            name = "a graph's stream" if queue is None else queue.name
            site = None if queue is None else queue.site
            self._lane(index, handle, TraceLane(self.tracer.visible_index(index), handle, name, site))

    def _lane(self, index: int, number: int, lane: TraceLane) -> None:
        self.lanes[index, number] = len(self.trace.lanes)
        self.trace.lanes.append(lane)

    def _place_range(self, found: AnnotatedRange) -> AnnotatedRange:
        """Return a range with its thread's lane and the trace's time."""
        assert self.ranges is not None
        ident = next(i for i, number in self.ranges.threads.items() if number == found.thread)
        begin, end = found.begin_ns - self.zero, found.end_ns - self.zero
        return replace(found, thread=self.lanes[NOWHERE, ident], begin_ns=begin, end_ns=end)

    # -- slices -----------------------------------------------------------------------------------------
    def _add(self, lane: int, kind: str, name: str, begin_ns: int, end_ns: int, nbytes: int) -> int:
        begin = begin_ns - self.zero
        self.trace.slices.append(TraceSlice(lane, kind, name, begin, max(end_ns - self.zero, begin), nbytes))
        return len(self.trace.slices) - 1

    def _add_calls(self) -> None:
        for r in self.requests:
            name = NAMES.get(r.name, r.name)
            place = self._add(self.lanes[NOWHERE, r.thread], r.kind, name, r.begin_ns, r.end_ns, r.nbytes)
            found = self.trace.slices[place]
            found.site, found.reason, found.detail = r.site, r.reason, self._detail(r.launch)
            found.target = self.lanes.get((r.index, r.stream), -1)
            self.calls.append(place)

    def _detail(self, launch: Launch | None) -> str:
        if launch is None:
            return ""
        found = self.details.get(id(launch))
        if found is None:
            found = self.details[id(launch)] = (launch, _operands(launch))
        return found[1]

    def _find_owners(self) -> None:
        """Map commands to requests. Calls of several threads may overlap; then the stream decides, if it can."""
        streams = {record.seq: record.stream for record in self.records}
        for at, request in enumerate(self.requests):
            for seq in range(request.first, request.last):
                if seq not in self.owners or streams.get(seq) == request.stream:
                    self.owners[seq] = at

    def _add_commands(self) -> list[tuple[CompletedCommand, int]]:
        """Add slices of the completed commands and of the waits of streams; return the waiting commands with
        their slices.
        """
        waits: list[tuple[CompletedCommand, int]] = []
        last: dict[int, int] = {}
        for record in self.records:
            before = last.get(record.stream, -1)
            if record.kind == "wait" and record.waits:
                place = self._stall(record, before)
                waits.append((record, place))
            elif record.kind in MARKERS:
                self.before[record.seq] = before
                continue
            else:
                place = self._ran(record)
            last[record.stream] = place
            seqs, places = self.queues.setdefault(record.stream, ([], []))
            seqs.append(record.seq)
            places.append(place)
        return waits

    def _ran(self, record: CompletedCommand) -> int:
        lane, name = self.lanes[record.index, record.stream], NAMES.get(record.kind, record.name)
        place = self._add(lane, record.kind, name, record.start_ns, record.end_ns, record.nbytes)
        self.work.setdefault(record.stream, []).append(place)
        self._explain(place, record)
        return place

    def _stall(self, record: CompletedCommand, before: int) -> int:
        """Add a slice from the time at which the stream reached the wait, and the host had issued it, to the
        wait's end.
        """
        lane, owner = self.lanes[record.index, record.stream], self.owners.get(record.seq)
        given = record.end_ns if owner is None else self.requests[owner].end_ns
        reached = given if before < 0 else max(self.trace.slices[before].end_ns + self.zero, given)
        place = self._add(lane, "wait", "wait", min(reached, record.end_ns), record.end_ns, 0)
        self._explain(place, record)
        return place

    def _explain(self, place: int, record: CompletedCommand) -> None:
        """Add the call site, detail and reason of the call that enqueued a command."""
        found, owner = self.trace.slices[place], self.owners.get(record.seq)
        found.seq = record.seq
        if owner is not None:
            call = self.trace.slices[self.calls[owner]]
            found.cause, found.site, found.reason = self.calls[owner], call.site, call.reason
            found.detail = call.detail if record.kind == "kernel" else ""

    # -- arrows -----------------------------------------------------------------------------------------
    def _add_waits(self, waits: list[tuple[CompletedCommand, int]]) -> None:
        lanes, slices = self.trace.lanes, self.trace.slices
        for record, place in waits:
            for seq in record.waits:
                earlier = self._end_before(seq)
                if earlier < 0 or slices[earlier].lane == slices[place].lane:
                    continue
                waiter, other = lanes[slices[place].lane], lanes[slices[earlier].lane]
                text = slices[place].reason or f"{waiter.title} waits for {other.title}"
                self.trace.arrows.append(Arrow(earlier, place, "wait", text))

    def _end_before(self, seq: int) -> int:
        """Return the slice that precedes an event's record on its stream, or else the slice of the recording
        call.
        """
        earlier = self.before.get(seq, -1)
        return earlier if earlier >= 0 or seq not in self.owners else self.calls[self.owners[seq]]

    def _add_syncs(self) -> None:
        recorded: dict[int, int] = {}  # event -> the number of its last record
        for at, request in enumerate(self.requests):
            if request.kind == RECORD:
                mine = [s for s in range(request.first, request.last) if self.owners[s] == at]
                recorded[request.event] = mine[0] if mine else -1
                continue
            earlier = self._waited_for(request, recorded)
            if earlier >= 0:
                lane = self.trace.lanes[self.trace.slices[earlier].lane]
                text = f"the host waits for {lane.title}"
                self.trace.arrows.append(Arrow(earlier, self.calls[at], "sync", text))

    def _waited_for(self, request: Request, recorded: dict[int, int]) -> int:
        """Return the slice whose end the host waited for or queried; -1: none."""
        if request.kind == MEMORY:
            earlier = self._last_of(request) if request.answered else -1
            late = earlier >= 0 and self.trace.slices[earlier].end_ns + self.zero > request.begin_ns
            return earlier if late else -1
        if request.kind == SYNC and not request.stream and not request.event:
            return self._last_of(request)
        if request.kind == SYNC or (request.kind in (ASK, GIVE) and request.answered):
            if request.event:
                return self.before.get(recorded.get(request.event, -1), -1)
            return self._last(request.stream, request.last)
        return -1

    def _last_of(self, request: Request) -> int:
        """Return the slice that ended last among the device's commands before the call."""
        handles = [handle for handle, queue in self.tracer.queues.items() if queue.index == request.index]
        lasts = [self._last(handle, request.first) for handle in handles]
        return max((p for p in lasts if p >= 0), key=lambda p: self.trace.slices[p].end_ns, default=-1)

    def _last(self, handle: int, seq: int) -> int:
        """Return the last slice of a stream before the command of a number."""
        seqs, places = self.queues.get(handle, ([], []))
        at = bisect_left(seqs, seq)
        return places[at - 1] if at else -1

    # -- memory and races -------------------------------------------------------------------------------
    def _add_memory(self) -> None:
        totals: dict[int, tuple[int, int]] = {}
        for time_ns, index, used, reserved in sorted(self.tracer.changes, key=lambda change: change[0]):
            before = totals.get(index, (0, 0))
            now = totals[index] = before[0] + used, before[1] + reserved
            self.trace.memory.append((time_ns - self.zero, self.tracer.visible_index(index), *now))

    def _side(self, side: RaceAccess) -> int | None:
        """Return the slice of one side of a race: the n-th command of its stream. Returns None if the host made the
        access or the command never ran.
        """
        places = self.work.get(side.handle, [])
        if not 0 < side.ordinal <= len(places):
            return None
        place = places[side.ordinal - 1]
        same = NAMES.get(side.operator, side.operator) == self.trace.slices[place].name
        return place if same or self.trace.slices[place].kind == "host_call" else None


def _rank(queue: Queue | None) -> int:
    """Return the sort key of lanes: default streams, then others by creation, then those of graphs."""
    return 1 << 30 if queue is None else queue.ordinal


def _operands(launch: Launch) -> str:
    """Return `float32[2, 3] = float32[2, 3], float32[3], a float32`: outputs and inputs of a launch."""
    outputs = ", ".join([_meta(meta) for meta in launch.outputs])
    inputs = ", ".join(
        [_meta(x) if isinstance(x, Meta) else f"a {getattr(x, 'name', 'value')}" for x in launch.inputs]
    )
    return f"{outputs} = {inputs}" if inputs else outputs


def _meta(meta: Meta) -> str:
    return f"{meta.dtype.name}{list(meta.shape)}"


def _with_noted_name(record: Any) -> Any:
    """Return a command named as race reports name it: "SGD.step" for the kernel "_sgd"."""
    name = noted_name(record.name) if record.kind == "kernel" else record.name
    return record if name == record.name else replace(record, name=name)
