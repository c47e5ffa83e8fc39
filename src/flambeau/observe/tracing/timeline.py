"""The commands that a machine ran, and their picture.

Attach a `Timeline` with `driver.on_command = timeline.add`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flambeau.observe.reports import Race
from flambeau.observe.tracing.picture import draw

MARKERS = frozenset({"record", "wait", "poison"})  # commands that take no time and are not the program's work


class CompletedCommand(Protocol):
    """A command that has run. Times are in simulated ns; `waits` are the `seq` of other commands.

    Within a stream, `seq` grows in the order of the requests.
    """

    @property
    def index(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def waits(self) -> tuple[int, ...]: ...


class Timeline:
    """The completed commands of all devices, in the order in which they ran."""

    def __init__(self, records: Sequence[CompletedCommand] = ()) -> None:
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: CompletedCommand) -> None:
        self.records.append(record)

    def lanes(self) -> dict[tuple[int, int], list[CompletedCommand]]:
        """Return (device, stream) -> commands in their order, with the default streams first."""
        lanes: dict[tuple[int, int], list[CompletedCommand]] = {}
        for record in sorted(self.records, key=lambda r: (r.index, r.stream, r.seq)):
            lanes.setdefault((record.index, record.stream), []).append(record)
        return lanes

    def work(self) -> dict[tuple[int, int], list[CompletedCommand]]:
        """Return (device, stream) -> commands without markers."""
        return {key: [r for r in lane if r.kind not in MARKERS] for key, lane in self.lanes().items()}

    def edges(self) -> list[tuple[CompletedCommand, CompletedCommand]]:
        """Return (earlier, later) for each wait of one stream for another: the commands around the two
        markers.

        An edge is left out if nothing precedes the record or follows the wait.
        """
        around: dict[int, tuple[CompletedCommand | None, CompletedCommand | None]] = {}
        waits: list[CompletedCommand] = []
        for lane in self.lanes().values():
            before: CompletedCommand | None = None
            open_markers: list[tuple[int, CompletedCommand | None]] = []
            for record in lane:
                if record.kind in MARKERS:
                    open_markers.append((record.seq, before))
                    if record.waits:
                        waits.append(record)
                    continue
                around.update({seq: (b, record) for seq, b in open_markers})
                open_markers = []
                before = record
            around.update({seq: (b, None) for seq, b in open_markers})
        edges: dict[tuple[int, int], tuple[CompletedCommand, CompletedCommand]] = {}
        for wait in waits:
            later = around[wait.seq][1]
            for seq in wait.waits:
                earlier = around.get(seq, (None, None))[0]
                if earlier is not None and later is not None and earlier.stream != later.stream:
                    edges[earlier.seq, later.seq] = (earlier, later)
        return list(edges.values())

    def racing(
        self, races: Sequence[Race]
    ) -> list[tuple[Race, CompletedCommand | None, CompletedCommand | None]]:
        """Return the commands of each race: the n-th of its stream. None for a side that is the host itself."""
        work = {stream: lane for (_, stream), lane in self.work().items()}
        return [
            (race, *[_nth(work.get(s.handle, []), s.ordinal) for s in (race.first, race.second)])  # type: ignore[misc]
            for race in races
        ]


def _nth(lane: list[CompletedCommand], ordinal: int) -> CompletedCommand | None:
    return lane[ordinal - 1] if 0 < ordinal <= len(lane) else None


def stream_names(timeline: Timeline) -> dict[tuple[int, int], str]:
    """Return (device, stream) -> name. Drivers give the default streams their handles first, one per device."""
    lanes = timeline.lanes()
    devices = 1 + max((index for index, _ in lanes), default=0)
    sides: dict[int, int] = {}
    names: dict[tuple[int, int], str] = {}
    for index, handle in lanes:
        if handle > devices:
            sides[index] = sides.get(index, 0) + 1
        names[index, handle] = f"side stream {sides[index]}" if handle > devices else "default stream"
    return names


def svg(timeline: Timeline, races: Sequence[Race] = ()) -> str:
    """Return a self-contained SVG picture of the timeline; racing commands are marked red."""
    names = stream_names(timeline)
    for race in races:  # the report's names, which also count streams that ran nothing
        for side in (race.first, race.second):
            for key in names:
                if key[1] == side.handle and side.stream:
                    names[key] = side.stream.removeprefix("the ").split(" of ")[0]
    return draw(timeline.work(), names, timeline.edges(), timeline.racing(races))
