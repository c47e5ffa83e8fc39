"""The page of `flambeau trace`: one self-contained HTML file, from a trace.

Columns of numbers and tables of texts go to the page; what is drawn of them is decided there (`pages/trace*.js`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from flambeau.cli.output.page_data import progress_and_data
from flambeau.core.callsite import Site, place, source
from flambeau.observe.reports import Race, RaceAccess
from flambeau.observe.tracing.range_recorder import AnnotatedRange
from flambeau.observe.tracing.trace import TraceData

_MOST = 500_000  # slices on a page that a browser can show; Perfetto's format has no limit
_MOST_POINTS = 6_000  # points of a memory curve
_SCRIPTS = ("trace_model.js", "trace_draw.js", "trace_hands.js")


def page(trace: TraceData, program: str) -> str:
    """Return the whole HTML page."""
    folder = files("flambeau.cli").joinpath("pages")
    text = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in (*_SCRIPTS, "trace.css")}
    progress, data = progress_and_data(picture(trace, program))
    parts = {
        "NAME": escape(program),
        "STYLE": text["trace.css"],
        "SCRIPT": "\n".join([text[name] for name in _SCRIPTS]),
        "PROGRESS": progress,
        "DATA": data,
    }
    pieces = folder.joinpath("trace.html").read_text(encoding="utf-8").split("{{")
    return pieces[0] + "".join([parts[key] + rest for key, rest in (p.split("}}", 1) for p in pieces[1:])])


def picture(trace: TraceData, program: str) -> dict[str, Any]:
    """Return the data of the page. Times in nanoseconds, sizes in bytes; texts are indices into tables."""
    slices = trace.slices[:_MOST]
    kinds, names, texts, lines = (
        _IndexedValues(str),
        _IndexedValues(str),
        _IndexedValues(str),
        _IndexedValues(_line),
    )
    columns = {
        "lane": [s.lane for s in slices],
        "kind": [kinds.number(s.kind) for s in slices],
        "name": [names.number(s.name) for s in slices],
        "begin": _steps([s.begin_ns for s in slices]),
        "length": [s.end_ns - s.begin_ns for s in slices],
        "bytes": [s.nbytes for s in slices],
        "line": [-1 if s.site is None else lines.number(s.site) for s in slices],
        "cause": [s.cause for s in slices],
        "target": [s.target for s in slices],
        "detail": [texts.number(s.detail) for s in slices],
        "why": [texts.number(s.reason) for s in slices],
    }
    arrows = [a for a in trace.arrows if max(a.earlier, a.later) < len(slices)]
    return {
        "program": program,
        "simulated": trace.simulated,
        "checked": trace.checked,
        "left_out": len(trace.slices) - len(slices),
        "devices": [{"index": index, "name": name} for index, name in trace.devices.items()],
        "lanes": [
            {"device": lane.index, "number": lane.number, "name": lane.name, "created": _place(lane.site)}
            for lane in trace.lanes
        ],
        "slices": columns,
        "arrows": {
            "from": [a.earlier for a in arrows],
            "to": [a.later for a in arrows],
            "kind": [kinds.number(a.kind) for a in arrows],
            "text": [texts.number(a.text) for a in arrows],
        },
        "memory": {index: _curve(trace, index) for index in sorted({entry[1] for entry in trace.memory})},
        "ranges": [_range(found) for found in trace.ranges],
        "races": [_race(race, first, second, len(slices)) for race, first, second in trace.races],
        "kinds": kinds.values,
        "names": names.values,
        "texts": texts.values,
        "lines": lines.values,
    }  # fmt: skip


class _IndexedValues:
    """A list of distinct values, with the index of each key."""

    def __init__(self, value: Callable[[Any], Any]) -> None:
        self.values: list[Any] = []
        self._value = value
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(self._value(key))
        return found


def _line(site: Site) -> list[str]:
    return [place(site), source(site)]


def _place(site: Site | None) -> str:
    return "" if site is None else place(site)


def _steps(values: Sequence[int]) -> list[int]:
    """Return each number minus its predecessor."""
    return [b - a for a, b in zip([0, *values], values, strict=False)]


def _curve(trace: TraceData, index: int) -> dict[str, list[int]]:
    """Return the bytes in use and reserved after each change. Of each interval only the largest value is kept."""
    points = [(at, used, reserved) for at, device, used, reserved in trace.memory if device == index]
    points = list(
        {at: (at, used, reserved) for at, used, reserved in points}.values()
    )  # keeps the last value of each moment
    stretch = -(-len(points) // _MOST_POINTS)
    kept = [max(points[i : i + stretch], key=lambda p: (p[1], p[2])) for i in range(0, len(points), stretch)]
    return {"at": [p[0] for p in kept], "used": [p[1] for p in kept], "reserved": [p[2] for p in kept]}


def _range(found: AnnotatedRange) -> dict[str, Any]:
    return {
        "lane": found.thread, "text": found.text, "begin": found.begin_ns, "end": found.end_ns,
        "depth": found.depth, "mark": found.is_mark,
    }  # fmt: skip


def _race(race: Race, first: int | None, second: int | None, most: int) -> dict[str, Any]:
    begin, end = race.range
    return {
        "head": race.headline,
        "fix": race.fix.text,
        "note": race.note.removeprefix("note:").strip(),
        "bytes": end - begin,
        "device": race.device,
        "count": race.count,
        "allocated": _place(race.allocated),
        "sides": [_side(race.first, first, most), _side(race.second, second, most)],
    }


def _side(side: RaceAccess, at: int | None, most: int) -> dict[str, Any]:
    """Return one access of a race. `slice` is -1 if the host made the access, or if it is not on the page."""
    what = "" if side.shape is None else f"{list(side.shape)} {side.dtype}"
    return {
        "slice": at if at is not None and at < most else -1,
        "place": side.place,
        "source": source(side.site),
        "operator": side.operator,
        "stream": side.stream or "the host",
        "kind": side.kind,
        "what": what,
    }
