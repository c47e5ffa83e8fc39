"""`table_of`: events, or averages of events, as text. Columns are PyTorch's, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flambeau.autograd.profiler_events import DeviceType, time_text

_SORTABLE = (
    "cpu_time", "cpu_time_total", "self_cpu_time_total", "device_time", "device_time_total", "self_device_time_total",
    "cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage", "self_device_memory_usage", "count",
)  # fmt: skip

Column = tuple[str, Callable[[Any], str]]  # its title, the cell of an event


def table_of(
    events: Any, sort_by: str | None, row_limit: int, widths: tuple[int, int, int], header: str | None,
    top_level_events_only: bool, time_unit: str | None,
) -> str:  # fmt: skip
    """Return events as a table; see `EventList.table`. `widths` are those of names, shapes and lines."""
    rows = [e for e in events if not top_level_events_only or getattr(e, "cpu_parent", None) is None]
    if sort_by is not None:
        name = sort_by.replace("cuda", "device")
        if name not in _SORTABLE:
            raise AttributeError(f"nothing is sorted by {sort_by!r}; by {', '.join(_SORTABLE)} it is")
        rows.sort(key=lambda event: -getattr(event, name))
    rows = rows[:row_limit]
    figures = _FigureColumns(events, time_unit)
    columns = [*figures.times(widths[0]), *figures.devices(), *figures.memory(), *_counts()]
    columns += [*_words(rows, widths[1], widths[2]), *figures.operations(rows)]
    lines = [[title for title, _ in columns], *[[cell(event) for _, cell in columns] for event in rows]]
    return _add_title(_align_columns(lines), header, top_level_events_only) + figures.totals()


class _FigureColumns:
    """The columns of figures. All events determine them, including events that the table leaves out."""

    def __init__(self, events: Any, time_unit: str | None) -> None:
        self._events = events
        self._unit = time_unit
        self._host = sum([e.self_cpu_time_total for e in events])
        self._device = sum([e.self_device_time_total for e in events if e.device_type is DeviceType.CUDA])

    def _time(self, us: float) -> str:
        return time_text(us, self._unit)

    def times(self, width: int) -> Iterable[Column]:
        yield "Name", lambda e: _cut(e.key, width)
        yield "Self CPU %", lambda e: _percent(e.self_cpu_time_total, self._host)
        yield "Self CPU", lambda e: self._time(e.self_cpu_time_total)
        yield "CPU total %", lambda e: _percent(e.cpu_time_total, self._host)
        yield "CPU total", lambda e: self._time(e.cpu_time_total)
        yield "CPU time avg", lambda e: self._time(e.cpu_time)

    def devices(self) -> Iterable[Column]:
        if any(e.self_device_time_total > 0 for e in self._events):
            yield "Self CUDA", lambda e: self._time(e.self_device_time_total)
            yield "Self CUDA %", lambda e: _percent(e.self_device_time_total, self._device)
            yield "CUDA total", lambda e: self._time(e.device_time_total)
            yield "CUDA time avg", lambda e: self._time(e.device_time)

    def memory(self) -> Iterable[Column]:
        if self._events.profile_memory:
            yield "CPU Mem", lambda e: size_text(e.cpu_memory_usage)
            yield "Self CPU Mem", lambda e: size_text(e.self_cpu_memory_usage)
            if any(e.self_device_memory_usage > 0 for e in self._events):
                yield "CUDA Mem", lambda e: size_text(e.device_memory_usage)
                yield "Self CUDA Mem", lambda e: size_text(e.self_device_memory_usage)

    def operations(self, rows: list[Any]) -> Iterable[Column]:
        """Yield the column of floating-point operations, in a unit in which the smallest number is 1 or more."""
        found = [e.flops for e in rows if e.flops > 0] if self._events.with_flops else []
        if found:
            step = min((len(str(min(found))) - 1) // 3, len(_OPERATIONS) - 1)
            size = 1000**step
            yield (
                f"Total {_OPERATIONS[step]}",
                lambda e: f"{e.flops / size:.3f}" if e.flops > 0 else "--",
            )

    def totals(self) -> str:
        text = f"Self CPU time total: {self._time(self._host)}\n"
        return text + (f"Self CUDA time total: {self._time(self._device)}\n" if self._device else "")


_OPERATIONS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")


def _counts() -> Iterable[Column]:
    yield "# of Calls", lambda e: str(e.count)


def _words(rows: list[Any], shapes: int, lines: int) -> Iterable[Column]:
    if any(event.input_shapes for event in rows):
        yield "Input Shapes", lambda e: _cut(str(e.input_shapes), shapes)
    if any(event.stack for event in rows):
        yield "Source Location", lambda e: _cut((*e.stack, "")[0], lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _add_title(table: str, header: str | None, top_level_events_only: bool) -> str:
    title = ""
    if header is not None:
        rule = "=" * table.index("\n") + "\n"
        title = f"{rule}{header}\n"
        table = title + rule + table if not top_level_events_only else table
    if top_level_events_only:
        note = "This report only display top-level ops statistics\n"
        table = (title + rule if title else "") + note + table
    return table


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.2f}%"


def size_text(nbytes: float) -> str:
    """Return a number of bytes in readable units; freed bytes are negative."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} B"


def _align_columns(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = "  ".join("-" * width for width in widths) + "\n"
    texts = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return rule + texts[0] + "\n" + rule + "".join(f"{text}\n" for text in texts[1:]) + rule
