"""`machine_page`: a machine as a notebook shows it: its devices, its memory, its races, its timeline."""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.observe.reports import Race
from flambeau.observe.reports_html import certificate_html, row_html, table_html
from flambeau.observe.tracing.picture import format_ns
from flambeau.observe.tracing.timeline import MARKERS, CompletedCommand, Timeline, svg
from flambeau.report.recorder import DeviceReport, MachineReport
from flambeau.runtime.memory.allocator_statistics import format_size


class RecentTimeline(Timeline):
    """The latest commands of a machine: those before them are dropped, so that a long session stays small.

    Attributes:
        dropped: Number of commands that were dropped.
    """

    def __init__(self, most: int = 20_000) -> None:
        super().__init__()
        self.dropped = 0
        self._most = most
        self._dropped_work: dict[int, int] = {}  # stream handle -> dropped commands that races count

    def add(self, record: CompletedCommand) -> None:
        super().add(record)
        if len(self.records) > self._most:
            self._drop(len(self.records) // 2)

    def _drop(self, count: int) -> None:
        for record in self.records[:count]:
            if record.kind not in MARKERS:
                self._dropped_work[record.stream] = self._dropped_work.get(record.stream, 0) + 1
        del self.records[:count]
        self.dropped += count

    def racing(
        self, races: Sequence[Race]
    ) -> list[tuple[Race, CompletedCommand | None, CompletedCommand | None]]:
        work = {stream: lane for (_, stream), lane in self.work().items()}

        def command(stream: int, ordinal: int) -> CompletedCommand | None:
            lane, place = work.get(stream, []), ordinal - self._dropped_work.get(stream, 0)
            return lane[place - 1] if 0 < place <= len(lane) else None

        return [
            (race, *[command(s.handle, s.ordinal) for s in (race.first, race.second)])  # type: ignore[misc]
            for race in races
        ]


def machine_page(report: MachineReport, timeline: RecentTimeline | None, closed: bool) -> str:
    """Return the HTML of a machine.

    Args:
        report: What the machine has done so far.
        timeline: Its commands; None where they are not known, as on real GPUs.
        closed: True if the machine is closed.
    """
    rows = row_html("devices", _devices(report) + (", closed" if closed else ""))
    if report.time_ns is not None:
        rows += row_html("time", f"{format_ns(report.time_ns)} simulated")
    for device in report.devices:
        rows += row_html(f"cuda:{device.index}", _memory(device, "at the end" if closed else "now"))
    if report.certificate is None:
        races = table_html(row_html("races", 'not detected; use races="warn" or races="error"'))
    else:
        races = certificate_html(report.certificate)
    return f"<div>{table_html(rows)}{races}{_timeline(report, timeline)}</div>"


def _devices(report: MachineReport) -> str:
    names = ", ".join(sorted({device.name for device in report.devices}))
    kind = f"virtual: profile {report.profile}, schedule {report.schedule}" if report.profile else "real"
    return f"{len(report.devices)} x {names} ({kind})"


def _memory(device: DeviceReport, when: str) -> str:
    left, peak, reserved = [
        format_size(nbytes) for nbytes in (device.left_allocated, device.peak_allocated, device.peak_reserved)
    ]
    return f"{left} allocated {when}, peak {peak} allocated, {reserved} reserved"


def _timeline(report: MachineReport, timeline: RecentTimeline | None) -> str:
    if timeline is None or not len(timeline):
        return ""
    races = report.certificate.races if report.certificate else []
    older = f"<div>{timeline.dropped:,} older commands are not shown</div>" if timeline.dropped else ""
    return f'<div style="overflow-x:auto;margin-top:6px">{svg(timeline, races)}</div>{older}'
