"""A timeline as an SVG picture: a lane per stream, a bar per command, an arrow per wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from flambeau.observe.reports import Race

if TYPE_CHECKING:
    from flambeau.observe.tracing.timeline import CompletedCommand

Lane = tuple[int, int]
Edge = tuple["CompletedCommand", "CompletedCommand"]
Racing = tuple[Race, "CompletedCommand | None", "CompletedCommand | None"]

_KINDS = {  # kind -> colour, name in the legend
    "kernel": ("#4c6ef5", "kernel"),
    "copy_in": ("#12b886", "copy in"),
    "copy_out": ("#f59f00", "copy out"),
    "copy": ("#9c36b5", "copy between devices"),
    "fill": ("#74839a", "fill"),
    "host_call": ("#a0522d", "host function"),
}
_RED = "#e03131"
_INK, _SOFT, _LINE = "#1f2933", "#66727f", "#e3e8ee"
_WIDTH, _LEFT, _RIGHT = 1280, 176, 28
_TOP, _LANE, _BAR, _DEVICE = 92, 40, 24, 30
_LETTER = 6.3  # approximate width of a letter at 11 px
_APART = 10  # least distance in pixels of arrows between two lanes
_MOST_ARROWS = 400  # more would hide the bars


class Scale:
    """The mapping from simulated time to pixels."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.length = max(end - begin, 1)

    def __call__(self, time_ns: float) -> float:
        return _LEFT + (time_ns - self.begin) / self.length * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield (pixel, label), about nine of them, at round times since the beginning."""
        step = 1
        while self.length / step > 10:
            step = step * 5 // 2 if str(step).startswith("2") else step * 2
        for time in range(0, self.length + 1, step):
            yield self(self.begin + time), format_ns(time)


def format_ns(time_ns: int) -> str:
    """Return a time in the largest unit in which it is at least one."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if time_ns >= size:
            return f"{time_ns / size:.4g} {unit}"
    return f"{time_ns} ns" if time_ns else "0"


def draw(
    lanes: Mapping[Lane, Sequence[CompletedCommand]],
    names: Mapping[Lane, str],
    edges: Sequence[Edge],
    racing: Sequence[Racing],
) -> str:
    """Return an SVG document. Bars thinner than a pixel are merged; titles show on hover."""
    records = [record for lane in lanes.values() for record in lane]
    begin = min((r.start_ns for r in records), default=0)
    scale = Scale(begin, max((r.end_ns for r in records), default=0))
    places, bottom = _places(lanes)
    red = {r.seq for _, *sides in racing for r in sides if r is not None}
    notes = [line for race, _, _ in racing[:6] for line in _note(race)]
    height = bottom + 44 + (16 * len(notes) + 28 if notes else 0)
    parts = [_head(height), *_title(lanes, scale, records), *_axis(scale, bottom)]
    seen: set[int] = set()
    for key, y in places.items():
        parts += _lane(key, y, lanes[key], names[key], scale, key[0] not in seen)
        seen.add(key[0])
    for key, y in places.items():
        parts += _bars(lanes[key], y, scale, red)
    parts += [
        _arrow(earlier, later, places, scale, _SOFT) for earlier, later in _apart(edges, scale)[:_MOST_ARROWS]
    ]
    for _, first, second in racing:
        if first is not None and second is not None:
            parts.append(_arrow(first, second, places, scale, _RED))
    parts += _notes(notes, bottom + 44, len(racing))
    return "\n".join([*parts, "</svg>", ""])


def _places(lanes: Mapping[Lane, Sequence[CompletedCommand]]) -> tuple[dict[Lane, int], int]:
    """Return the top of each lane, with room above the first lane of each device, and the end of the last
    lane.
    """
    places: dict[Lane, int] = {}
    y, device = _TOP, None
    for index, handle in lanes:
        if index != device:
            y += _DEVICE
            device = index
        places[index, handle] = y
        y += _LANE
    return places, y + 6


def _head(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f"height=\"{height}\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\">\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z" fill="{_SOFT}"/></marker>'
        '<marker id="alarm" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto-start-reverse"><path d="M0 0.8 L8 4 L0 7.2 z" fill="{_RED}"/></marker></defs>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    )


def _text(x: float, y: float, text: str, size: int = 11, fill: str = _INK, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" {extra}>{escape(text)}</text>'


def _title(
    lanes: Mapping[Lane, Sequence[CompletedCommand]], scale: Scale, records: Sequence[CompletedCommand]
) -> list[str]:
    devices = len({index for index, _ in lanes})
    said = (
        f"{_count(devices, 'device')}, {_count(len(lanes), 'stream')}, {_count(len(records), 'command')} "
        f"in {format_ns(scale.length)} of simulated time"
    )
    parts = [_text(24, 34, "Timeline", 20, extra='font-weight="600"'), _text(24, 54, said, 12, _SOFT)]
    x = _WIDTH - _RIGHT
    present = {record.kind for record in records}
    for kind, (colour, name) in reversed(_KINDS.items()):
        if kind in present:
            x -= int(len(name) * _LETTER) + 32
            parts.append(f'<rect x="{x}" y="24" width="12" height="12" rx="3" fill="{colour}"/>')
            parts.append(_text(x + 18, 34, name, 11, _SOFT))
    return parts


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _axis(scale: Scale, bottom: int) -> list[str]:
    parts = []
    for x, label in scale.ticks():
        parts.append(f'<path d="M{x:.1f} {_TOP} V{bottom}" stroke="{_LINE}"/>')
        parts.append(_text(x, bottom + 18, label, 11, _SOFT, 'text-anchor="middle"'))
    return parts


def _lane(
    key: Lane, y: int, lane: Sequence[CompletedCommand], name: str, scale: Scale, first: bool
) -> list[str]:
    """Return the background and the label of a lane, with its utilization. A device's first lane names the
    device.
    """
    busy = sum(r.end_ns - r.start_ns for r in lane) / scale.length
    parts = [
        f'<rect x="{_LEFT}" y="{y + 4}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_LANE - 8}" rx="5" '
        'fill="#f4f6f9" fill-opacity="0.75"/>',
        _text(24, y + 18, name, 12),
        _text(24, y + 32, f"{_count(len(lane), 'command')}, busy {busy:.0%}", 10, _SOFT),
    ]
    if first:
        parts.append(_text(24, y - 8, f"cuda:{key[0]}", 13, extra='font-weight="600"'))
    return parts


def _bars(lane: Sequence[CompletedCommand], y: int, scale: Scale, red: set[int]) -> Iterator[str]:
    """Yield a bar per command. Runs of one kind, all thinner than a pixel and equally close, share one bar."""
    group: list[CompletedCommand] = []
    for record in lane:
        if group and (record.seq in red or not _joins(group[-1], record, scale)):
            yield _bar(group, y, scale, red)
            group = []
        group.append(record)
        if record.seq in red:
            yield _bar(group, y, scale, red)
            group = []
    if group:
        yield _bar(group, y, scale, red)


def _joins(last: CompletedCommand, record: CompletedCommand, scale: Scale) -> bool:
    thin = all(scale(r.end_ns) - scale(r.start_ns) < 1 for r in (last, record))
    return thin and last.kind == record.kind and scale(record.start_ns) - scale(last.end_ns) < 1


def _bar(group: list[CompletedCommand], y: int, scale: Scale, red: set[int]) -> str:
    first, last = group[0], group[-1]
    x = scale(first.start_ns)
    width = max(scale(last.end_ns) - x, 1.5)
    colour = _KINDS.get(first.kind, ("#495057", ""))[0]
    alarm = f' stroke="{_RED}" stroke-width="2.5"' if first.seq in red else ""
    shape = (
        f'<rect x="{x:.2f}" y="{y + 8}" width="{width:.2f}" height="{_BAR}" '
        f'rx="{min(4.0, width / 3):.1f}" fill="{colour}"{alarm}/>'
    )
    label = ""
    if len(group) == 1 and width > len(first.name) * _LETTER + 8:
        label = _text(
            x + width / 2, y + 24, first.name, 11, "#ffffff", 'text-anchor="middle" pointer-events="none"'
        )
    return f"<g><title>{escape(_hover(group))}</title>{shape}{label}</g>"


def _hover(group: list[CompletedCommand]) -> str:
    first, last = group[0], group[-1]
    what = first.name if len(group) == 1 else f"{len(group)} commands, {first.name} the first"
    nbytes = sum(record.nbytes for record in group)
    took = format_ns(last.end_ns - first.start_ns)
    return f"{what}: {took}, from {first.start_ns:,} to {last.end_ns:,} ns; {nbytes:,} bytes"


def _arrow(
    earlier: CompletedCommand, later: CompletedCommand, places: Mapping[Lane, int], scale: Scale, colour: str
) -> str:
    """Return an arrow from the end of one command to the beginning of another. Between racing commands it is
    red.
    """
    y1, y2 = places[earlier.index, earlier.stream] + 20.0, places[later.index, later.stream] + 20.0
    side = _BAR / 2 if y2 > y1 else -_BAR / 2
    if colour == _RED:
        x1, x2 = (scale(time) for time in _nearest(earlier, later))
        y1, y2 = y1 + side, y2 - side
        style = (
            'stroke-width="1.8" stroke-dasharray="5 3" marker-start="url(#alarm)" marker-end="url(#alarm)"'
        )
        return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" {style}/>'
    x1, x2 = scale(earlier.end_ns), scale(later.start_ns)
    bend = max(abs(x2 - x1) / 2, 14)
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.2" marker-end="url(#tip)"/>'


def _apart(edges: Sequence[Edge], scale: Scale) -> list[Edge]:
    """Return the edges without those that would cover another between the same lanes."""
    ends: dict[tuple[Lane, Lane], float] = {}
    kept = []
    for earlier, later in sorted(edges, key=lambda edge: edge[1].start_ns):
        lanes = (earlier.index, earlier.stream), (later.index, later.stream)
        x = scale(later.start_ns)
        if x - ends.get(lanes, -_APART) >= _APART:
            ends[lanes] = x
            kept.append((earlier, later))
    return kept


def _nearest(one: CompletedCommand, other: CompletedCommand) -> tuple[float, float]:
    """Return the closest times of two commands: the middle of their overlap, or the ends that face each other."""
    begin, end = max(one.start_ns, other.start_ns), min(one.end_ns, other.end_ns)
    if begin <= end:
        return (begin + end) / 2, (begin + end) / 2
    return (one.end_ns, other.start_ns) if one.end_ns < other.start_ns else (one.start_ns, other.end_ns)


def _note(race: Race) -> list[str]:
    return [race.headline, f"    {race.fix.text}"]


def _notes(notes: Sequence[str], y: int, races: int) -> list[str]:
    if not notes:
        return []
    parts = [_text(24, y + 6, _count(races, "race"), 13, _RED, 'font-weight="600"')]
    for i, line in enumerate(notes):
        colour = _SOFT if line.startswith(" ") else _INK
        parts.append(_text(40 if colour is _SOFT else 24, y + 26 + 16 * i, line.strip(), 11, colour))
    return parts
