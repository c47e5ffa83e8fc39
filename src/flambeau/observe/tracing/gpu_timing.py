"""The times of commands on real GPUs, measured by timing events around each call.

# Note [Times of real GPUs] One event is recorded before and one after each piece of work, on its stream.
The time between the device's first event and each of them places the work on the host's clock, as exactly
as cudaEventElapsedTime: half a microsecond, and 4 us after a minute. The trace shows the cost of the
events: some microseconds of host time for each call. Nothing is measured while a stream is captured. A
graph's launch is one piece of work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from flambeau.driver.protocol import Driver
from flambeau.observe.tracing.driver_calls import GIVE, RECORD, WAIT, Request
from flambeau.observe.tracing.timeline import CompletedCommand

_MANY = 4096  # outstanding pairs of events before those of finished work are read

_KINDS = {
    "copy_in": "copy_in",
    "copy_out": "copy_out",
    "copy": "copy",
    "fill": "fill",
    "host function": "host_call",
    "graph": "graph",
}


@dataclass(slots=True)
class Lap:
    """A timed command. An event record takes no time and is not timed itself: it ends when the work before it ends."""

    index: int
    stream: int
    kind: str
    name: str
    nbytes: int
    seq: int
    waits: tuple[int, ...] = ()
    begin: int = 0  # an event; 0: none
    end: int = 0
    start_ns: int = 0
    end_ns: int = 0


class Measured:
    """The timing of a machine of real GPUs. A device without work is not touched, so it gets no context."""

    def __init__(self, bare: Driver, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self._driver = bare
        self._laps: list[Lap] = []
        self._open: deque[Lap] = deque()  # laps whose times are not known yet
        self._began: dict[int, Lap] = {}  # stream -> the work that is being enqueued
        self._recorded: dict[int, int] = {}  # event -> the number of its record
        self._spare: dict[int, list[int]] = {}
        self._bases: dict[int, tuple[int, int]] = {}  # device -> its first event, and the host's time then

    def next_seq(self) -> int:
        return len(self._laps)

    def before(self, request: Request) -> None:
        if request.kind == GIVE and not self._driver.capture_active(request.stream):
            lap = self._add(request, _kind(request))
            lap.begin = self._mark(request.index, request.stream)
            self._began[request.stream] = lap

    def after(self, request: Request, gave: bool) -> None:
        if request.kind == GIVE:
            lap = self._began.pop(request.stream, None)
            if lap is not None:
                lap.kind = lap.kind if gave else "record"  # a mark without work
                lap.end = self._mark(request.index, request.stream)
                self._open.append(lap)
        elif gave and request.kind in (RECORD, WAIT) and not self._driver.capture_active(request.stream):
            self._note(request)
        if len(self._open) > _MANY:
            self._take_up(all_of_them=False)

    def _note(self, request: Request) -> None:
        if request.kind == RECORD:
            self._recorded[request.event] = self._add(request, "record").seq
        elif request.event in self._recorded:
            lap = self._add(request, "wait")
            lap.waits = (self._recorded[request.event],)
            lap.end = self._mark(request.index, request.stream)  # complete at the end of the wait
            self._open.append(lap)

    def records(self) -> list[CompletedCommand]:
        with suppress(RuntimeError):  # a failed device reports no times
            self._take_up(all_of_them=True)
        ends: dict[int, int] = {}
        for lap in self._laps:
            if lap.kind == "record":
                lap.start_ns = lap.end_ns = ends.get(lap.stream, 0)
            ends[lap.stream] = lap.end_ns
        return [lap for lap in self._laps if lap.end_ns]

    def close(self) -> None:
        for event in [
            *chain.from_iterable(self._spare.values()),
            *[base for base, _ in self._bases.values()],
        ]:
            self._driver.event_destroy(event)
        self._spare.clear()
        self._bases.clear()

    def _add(self, request: Request, kind: str) -> Lap:
        lap = Lap(request.index, request.stream, kind, request.name, request.nbytes, len(self._laps))
        self._laps.append(lap)
        return lap

    # -- events ---------------------------------------------------------------------------------------
    def _begin(self, index: int) -> None:
        """Record the first event of a device, before its first work."""
        event = self._driver.event_create(index, True)
        self._driver.device_sync(index)
        self._bases[index] = event, self.clock()
        self._driver.event_record(event, self._driver.stream_default(index))

    def _mark(self, index: int, stream: int) -> int:
        if index not in self._bases:
            self._begin(index)
        spare = self._spare.get(index)
        event = spare.pop() if spare else self._driver.event_create(index, True)
        self._driver.event_record(event, stream)
        return event

    def _take_up(self, all_of_them: bool) -> None:
        """Read the times of completed laps, oldest first."""
        while self._open:
            lap = self._open[0]
            if all_of_them:
                self._driver.event_sync(lap.end, internal=True)
            elif not self._driver.event_query(lap.end, internal=True):
                return
            lap.end_ns = self._time(lap.index, lap.end)
            lap.start_ns = self._time(lap.index, lap.begin) if lap.begin else lap.end_ns
            self._open.popleft()

    def _time(self, index: int, event: int) -> int:
        base, at_ns = self._bases[index]
        self._spare.setdefault(index, []).append(event)
        return at_ns + self._driver.event_elapsed_ns(base, event)


def _kind(request: Request) -> str:
    """Return the kind of a request, named as on a virtual machine."""
    return "kernel" if request.launch is not None else _KINDS.get(request.name, "collective")
