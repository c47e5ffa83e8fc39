"""The effects of a captured graph on the race detector, replayed at each launch of the graph.

A capture runs nothing, so nothing races in it. At a launch its commands are checked one by one, with the
call sites that recorded them. Commands of the origin stream count as commands of the stream that the graph
is launched on. Commands of each stream that joined count as those of an own stream of the graph. Launches
of one graph run one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from flambeau.core.callsite import Site
from flambeau.core.errors import RaceError
from flambeau.observe.accesses import ShadowBlock
from flambeau.observe.clocks import LogicalThread
from flambeau.observe.detector import Check, Detector
from flambeau.observe.indexed.partial import Probe
from flambeau.observe.order import Lane
from flambeau.observe.pinned.pinned_accesses import PinnedUse

# keys of graphs' own streams and events: negative, because no driver's handle is
_keys = itertools.count(-1, -1)


_Step = Callable[[Detector, dict[int, int]], None]
"""A function `step(detector, handles)` that replays one call; `handles` maps the captured streams."""


class Tape:
    """The calls that one capture recorded. Each launch of the captured graph replays them."""

    def __init__(self, origin: int) -> None:
        self.streams: dict[int, Lane] = {}  # the other streams that joined the capture
        self.origin = origin
        self._steps: list[_Step] = []
        # block of the program that the graph uses -> number at which the block's lifetime began
        self._lent: dict[ShadowBlock, int] = {}
        self._probes: list[Probe] = []
        self._lanes: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self._last = next(_keys)

    def join(self, stream: int, agent: LogicalThread) -> None:
        if stream != self.origin:
            self.streams.setdefault(stream, (agent.device, agent.ordinal, agent.site, agent.grouped))

    def command(
        self,
        stream: int,
        check: Check,
        ptrs: tuple[int, ...],
        site: Site,
        lent: Sequence[ShadowBlock],
        pinned: PinnedUse | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Record a command with the program's memory and the pinned memory that it uses.

        Args:
            probe: The receiver of the elements that indices select, which the kernel reports.
        """
        self._lent |= {block: block.born for block in lent}
        if probe is not None:
            self._probes.append(probe)

        def play(detector: Detector, handles: dict[int, int]) -> None:
            access = check(handles[stream], ptrs, site)
            if probe is not None:
                probe.add(access)
            if pinned is not None:
                detector.host.add_command(pinned, handles[stream])

        self._steps.append(play)

    def record(self, event: int, stream: int) -> None:
        key = self._events[event] = next(_keys)
        self._steps.append(lambda detector, handles: detector.record(key, handles[stream]))

    def wait(self, stream: int, event: int, site: Site) -> None:
        key = self._events.get(event)
        if key is not None:
            self._steps.append(lambda detector, handles: detector.wait(handles[stream], key, site))

    def nest(self, inner: Tape, stream: int) -> None:
        """Add the calls of `inner`, because its graph is launched on a stream during this capture."""
        lanes = {joined: next(_keys) for joined in inner.streams}
        self.streams |= {lanes[joined]: about for joined, about in inner.streams.items()}
        names = {**lanes, inner.origin: stream}
        self._lent |= inner._lent
        self._probes += inner._probes
        for probe in inner._probes:
            probe.nested = True
        self._steps += [_rename_streams(step, names) for step in inner._steps]

    def play(self, detector: Detector, stream: int, site: Site) -> None:
        """Apply the recorded calls to the detector, for a launch of the graph on a stream.

        Raises:
            RaceError: In mode "error". The caller must then not launch the graph.
        """
        for joined, lane in self.streams.items():
            if joined not in self._lanes:
                self._lanes[joined] = next(_keys)
                detector.add_lane(self._lanes[joined], lane)
        detector.graphs.check_lent(self._lent, site)
        detector.wait(stream, self._last, site)
        handles = {**self._lanes, self.origin: stream}
        begin = detector.number
        try:
            with detector.graphs.launching(self._last, stream, site):
                for step in self._steps:
                    step(detector, handles)
        except RaceError:
            for probe in self._probes:
                probe.cancel(begin)
            raise
        detector.record(self._last, stream)

    def forget(self, detector: Detector) -> None:
        """Release what the detector stores for a destroyed graph."""
        for lane in self._lanes.values():
            detector.remove_stream(lane)
        detector.graphs.forget(self._last)
        for event in (self._last, *self._events.values()):
            detector.forget_event(event)


def _rename_streams(step: _Step, names: dict[int, int]) -> _Step:
    """Return a step with its stream handles replaced by those of `names`."""
    return lambda detector, handles: step(detector, {old: handles[new] for old, new in names.items()})
