"""`EventList`: the events of a profile, or their averages: added up, as a table, as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flambeau.autograd.profiler_events import FunctionEventAvg
from flambeau.autograd.profiler_memory import MemoryNote
from flambeau.autograd.profiler_table import table_of
from flambeau.autograd.profiler_trace import chrome_trace
from flambeau.core.files import replace_file


class EventList(list[Any]):
    """A list of events, or of their averages.

    Attributes:
        profile_memory: True if tables have columns of allocated memory.
        with_flops: True if tables have a column of floating-point operations.
        memory: Allocations and frees, for exported traces.
    """

    def __init__(
        self,
        events: Iterable[Any] = (),
        *,
        profile_memory: bool = False,
        with_flops: bool = False,
        memory: Sequence[MemoryNote] = (),
    ) -> None:
        super().__init__(events)
        self.profile_memory = profile_memory
        self.with_flops = with_flops
        self.memory = memory

    @property
    def self_cpu_time_total(self) -> float:
        """Return the host time of all events, in microseconds."""
        return sum(event.self_cpu_time_total for event in self)

    def key_averages(self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Return the events summed by name and, if requested, by input shapes and innermost lines.

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
        return EventList(found.values(), profile_memory=self.profile_memory, with_flops=self.with_flops)

    def export_stacks(self, path: str | Path, metric: str) -> None:
        """Write each line of calls, outermost first, with its time in whole microseconds.

        Raises:
            ValueError: For any other metric.
        """
        if metric not in _STACK_METRICS:
            raise ValueError(f"metric should be one of: {list(_STACK_METRICS)}")
        name = metric.replace("cuda", "device")
        lines: dict[str, float] = {}
        for event in self:
            if event.stack:
                line = ";".join(frame.translate(_PLAIN) for frame in reversed(event.stack))
                lines[line] = lines.get(line, 0.0) + getattr(event, name)
        text = "".join([f"{line} {int(us)}\n" for line, us in lines.items() if int(us) > 0])
        replace_file(path, text)

    def total_average(self) -> FunctionEventAvg:
        """Return all of them added up."""
        total = FunctionEventAvg("Total")
        for event in self:
            total.add(event)
        return total

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
        max_name_column_width: int = 55, max_shapes_column_width: int = 80, header: str | None = None,
        top_level_events_only: bool = False, time_unit: str | None = None,
    ) -> str:  # fmt: skip
        """Return the events as text, the largest first by `sort_by` ("cuda_time_total" and "device_time_total" are
        one).

        Columns are there where there is something to show: devices' times, memory, shapes, lines, floating-point
        operations. Names and such are cut to the given numbers of letters; `header` stands above; all times are
        in `time_unit` ("s", "ms", "us"), if one is given.

        Raises:
            AttributeError: If events cannot be sorted by this key.
        """
        widths = max_name_column_width, max_shapes_column_width, max_src_column_width
        return table_of(self, sort_by, row_limit, widths, header, top_level_events_only, time_unit)

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the Trace Event Format that chrome://tracing and ui.perfetto.dev read."""
        chrome_trace(self, self.memory).write(path)


_STACK_METRICS = ("self_cpu_time_total", "self_cuda_time_total")
_PLAIN = str.maketrans(" ;\t\n", "____")  # characters that separate frames and statistics
