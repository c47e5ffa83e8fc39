"""What a profile holds: events, their averages by name, tables. Times in microseconds."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flambeau.observe.chrome import ChromeTrace

_SORTABLE = (
    "cpu_time", "cpu_time_total", "self_cpu_time_total", "device_time", "device_time_total",
    "self_device_time_total", "count",
)  # fmt: skip


class DeviceType(enum.Enum):
    """Where an event took its time."""

    CPU = 0
    CUDA = 1


@dataclass(frozen=True)
class Interval:
    """A span of time in microseconds."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """How long it is."""
        return self.end - self.start


class _Times:
    """Figures that events and averages share."""

    count: int
    cpu_time_total: float
    device_time_total: float

    @property
    def cpu_time(self) -> float:
        """Host time of one call on average."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Device time of one call on average."""
        return self.device_time_total / self.count if self.count else 0.0

    @property
    def cuda_time(self) -> float:
        """The old name of `device_time`. Warns."""
        return self._renamed("cuda_time")

    @property
    def cuda_time_total(self) -> float:
        """The old name of `device_time_total`. Warns."""
        return self._renamed("cuda_time_total")

    @property
    def self_cuda_time_total(self) -> float:
        """The old name of `self_device_time_total`. Warns."""
        return self._renamed("self_cuda_time_total")

    def _renamed(self, old: str) -> float:
        new = old.replace("cuda", "device")
        warnings.warn(f"`{old}` is deprecated, please use `{new}` instead.", FutureWarning, stacklevel=3)
        found: float = getattr(self, new)
        return found


@dataclass(eq=False)
class FunctionEvent(_Times):
    """An operator's call, a `record_function` block, or what a device did.

    thread: of the host, numbered from 0; for a device's event, its stream. kernels: what the call itself started on
    devices. device_index: -1 for the host's. stack: the program's lines that it came from, innermost first, if they
    were asked for.
    """

    name: str
    time_range: Interval
    thread: int = 0
    device_type: DeviceType = DeviceType.CPU
    device_index: int = -1
    is_user_annotation: bool = False
    input_shapes: list[list[int]] = field(default_factory=list)
    flops: int = 0
    stack: list[str] = field(default_factory=list, repr=False)
    cpu_parent: FunctionEvent | None = field(default=None, repr=False)
    cpu_children: list[FunctionEvent] = field(default_factory=list, repr=False)
    kernels: list[FunctionEvent] = field(default_factory=list, repr=False)
    count: int = 1

    @property
    def key(self) -> str:
        """What averages are made by: its name, but the steps of a schedule are one."""
        return "ProfilerStep*" if self.name.startswith("ProfilerStep#") else self.name

    @property
    def _on_host(self) -> bool:
        return self.device_type is DeviceType.CPU

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]
        """Host time of the call and what it called."""
        return self.time_range.elapsed_us() if self._on_host else 0.0

    @property
    def self_cpu_time_total(self) -> float:
        """Host time of the call less what it called."""
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)

    @property
    def self_device_time_total(self) -> float:
        """Device time of what the call itself started."""
        if not self._on_host:
            return self.time_range.elapsed_us()
        return sum(kernel.time_range.elapsed_us() for kernel in self.kernels)

    @property
    def device_time_total(self) -> float:  # type: ignore[override]
        """Device time of what the call, and what it called, started."""
        return self.self_device_time_total + sum(child.device_time_total for child in self.cpu_children)


@dataclass(eq=False)
class FunctionEventAvg(_Times):
    """Events of one name, added up."""

    key: str
    device_type: DeviceType = DeviceType.CPU
    input_shapes: list[list[int]] = field(default_factory=list)
    is_user_annotation: bool = False
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    device_time_total: float = 0.0
    self_device_time_total: float = 0.0
    flops: int = 0
    stack: list[str] = field(default_factory=list)

    def add(self, event: FunctionEvent | FunctionEventAvg) -> FunctionEventAvg:
        """Add an event's figures; itself. Of an event inside another of its name only its own count as total."""
        self.count += event.count
        inside = isinstance(event, FunctionEvent) and _inside_itself(event)
        if not inside:
            self.cpu_time_total += event.cpu_time_total
            self.device_time_total += event.device_time_total
        self.self_cpu_time_total += event.self_cpu_time_total
        self.self_device_time_total += event.self_device_time_total
        self.flops += event.flops
        return self


def _inside_itself(event: FunctionEvent) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == event.name:
            return True
        parent = parent.cpu_parent
    return False


class EventList(list[Any]):
    """A list of events, or of their averages."""

    @property
    def self_cpu_time_total(self) -> float:
        """Host time of all."""
        return sum(event.self_cpu_time_total for event in self)

    def key_averages(self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0) -> EventList:
        """The events added up by name, and by the shapes of inputs and the innermost lines if so asked.

        In the order of first calls.
        """
        found: dict[Any, FunctionEventAvg] = {}
        for event in self:
            shapes = event.input_shapes if group_by_input_shapes else []
            lines = event.stack[:group_by_stack_n]
            key = (event.key, event.device_type, event.is_user_annotation, str(shapes), *lines)
            if key not in found:
                found[key] = FunctionEventAvg(
                    event.key, event.device_type, shapes, event.is_user_annotation, stack=lines
                )
            found[key].add(event)
        return EventList(found.values())

    def export_stacks(self, path: str | Path, metric: str) -> None:
        """Write each line of calls, outermost first, with its time in whole microseconds.

        Raises ValueError: another metric.
        """
        if metric not in _STACK_METRICS:
            raise ValueError(f"metric should be one of: {list(_STACK_METRICS)}")
        name = metric.replace("cuda", "device")
        lines: dict[str, float] = {}
        for event in self:
            if event.stack:
                line = ";".join(frame.translate(_PLAIN) for frame in reversed(event.stack))
                lines[line] = lines.get(line, 0.0) + getattr(event, name)
        Path(path).write_text("".join([f"{line} {int(us)}\n" for line, us in lines.items() if int(us) > 0]))

    def total_average(self) -> FunctionEventAvg:
        """All of them added up."""
        total = FunctionEventAvg("Total")
        for event in self:
            total.add(event)
        return total

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
        max_name_column_width: int = 55, max_shapes_column_width: int = 80, header: str | None = None,
        top_level_events_only: bool = False,
    ) -> str:  # fmt: skip
        """The events as text, the largest first by `sort_by` ("cuda_time_total" and "device_time_total" are one).

        Shapes and lines are columns if there are any; names and such are cut to the given numbers of letters, and
        `header` stands above. Raises AttributeError: nothing is sorted by that.
        """
        rows = [e for e in self if not top_level_events_only or getattr(e, "cpu_parent", None) is None]
        if sort_by is not None:
            name = sort_by.replace("cuda", "device")
            if name not in _SORTABLE:
                raise AttributeError(f"nothing is sorted by {sort_by!r}; by {', '.join(_SORTABLE)} it is")
            rows.sort(key=lambda event: -getattr(event, name))
        rows = rows[:row_limit]
        lines = [_COLUMNS, *[_row(event, self, max_name_column_width) for event in rows]]
        if any(event.input_shapes for event in rows):
            _add_column(lines, "Input Shapes", [str(e.input_shapes) for e in rows], max_shapes_column_width)
        if any(event.stack for event in rows):
            _add_column(lines, "Source Location", [(*e.stack, "")[0] for e in rows], max_src_column_width)
        return _titled(_laid_out(lines), header, top_level_events_only) + _totals(self)

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the Trace Event Format that chrome://tracing and ui.perfetto.dev read."""
        chrome_trace(self).write(path)


_COLUMNS = [
    "Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "Self CUDA", "Self CUDA %",
    "CUDA total", "CUDA time avg", "# of Calls",
]  # fmt: skip
_STACK_METRICS = ("self_cpu_time_total", "self_cuda_time_total")
_PLAIN = str.maketrans(" ;\t\n", "____")  # what separates frames and figures


def _add_column(lines: list[list[str]], title: str, cells: list[str], width: int) -> None:
    texts = [title, *[cell if len(cell) <= width else cell[: width - 3] + "..." for cell in cells]]
    lines[:] = [[*line, text] for line, text in zip(lines, texts, strict=True)]


def _titled(table: str, header: str | None, top_level_events_only: bool) -> str:
    title = ""
    if header is not None:
        rule = "=" * table.index("\n") + "\n"
        title = f"{rule}{header}\n"
        table = title + rule + table if not top_level_events_only else table
    if top_level_events_only:
        note = "This report only display top-level ops statistics\n"
        table = (title + rule if title else "") + note + table
    return table


def _device_total(events: Iterable[Any]) -> float:
    return sum(e.self_device_time_total for e in events if e.device_type is DeviceType.CUDA)


def _row(event: Any, events: EventList, width: int) -> list[str]:
    name = event.key if len(event.key) <= width else event.key[: width - 3] + "..."
    host, device = events.self_cpu_time_total, _device_total(events)
    return [
        name, _percent(event.self_cpu_time_total, host), time_text(event.self_cpu_time_total),
        _percent(event.cpu_time_total, host), time_text(event.cpu_time_total), time_text(event.cpu_time),
        time_text(event.self_device_time_total),
        _percent(event.self_device_time_total, device), time_text(event.device_time_total),
        time_text(event.device_time), str(event.count),
    ]  # fmt: skip


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.2f}%"


def time_text(us: float) -> str:
    """Microseconds as people read them."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3f}{unit}"
    return f"{us:.3f}us"


def _laid_out(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = "  ".join("-" * width for width in widths) + "\n"
    texts = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return rule + texts[0] + "\n" + rule + "".join(f"{text}\n" for text in texts[1:]) + rule


def _totals(events: EventList) -> str:
    host, device = time_text(events.self_cpu_time_total), _device_total(events)
    return f"Self CPU time total: {host}\n" + (
        f"Self CUDA time total: {time_text(device)}\n" if device else ""
    )


def chrome_trace(events: Iterable[FunctionEvent]) -> ChromeTrace:
    """Slices of a process for the program and one for each device, and an arrow from each call to what it started."""
    made = ChromeTrace()
    seen: set[int] = set()
    for event in events:
        if event.device_index not in seen:
            seen.add(event.device_index)
            made.process(
                event.device_index, "program" if event.device_index < 0 else f"cuda:{event.device_index}"
            )
        category = "user_annotation" if event.is_user_annotation else "cpu_op"
        if event.device_type is DeviceType.CUDA:
            category = "kernel"
        args: dict[str, Any] = {"Input Dims": event.input_shapes} if event.input_shapes else {}
        pid, tid, begin_ns = _begin(event)
        made.slice(pid, tid, event.name, category, begin_ns, event.time_range.end * 1000, args)
        for kernel in event.kernels:
            made.arrow("ac2g", "ac2g", _begin(event), _begin(kernel))
    return made


def _begin(event: FunctionEvent) -> tuple[int, int, float]:
    return event.device_index, event.thread, event.time_range.start * 1000
