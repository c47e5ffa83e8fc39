"""`write_trace` and `write_picture`: the timeline of a program, as a page, for Perfetto, or as SVG."""

from __future__ import annotations

from pathlib import Path

from flambeau.cli.output.trace_page import page
from flambeau.core.files import replace_file
from flambeau.observe.tracing.timeline import svg
from flambeau.observe.tracing.trace import TraceData
from flambeau.observe.tracing.trace_events import chrome_trace
from flambeau.report.recorder import ProcessRecorder


def write_trace(recorder: ProcessRecorder, path: Path, program: str) -> None:
    """Write the longest run of a machine: a page if the file is called `.html`, else a Chrome or Perfetto trace.

    A program has one machine unless it opens more itself.
    """
    trace = _longest(recorder)
    if path.suffix == ".html":
        replace_file(path, page(trace, program))
    else:
        chrome_trace(trace).write(path)


def write_picture(recorder: ProcessRecorder, path: Path) -> None:
    """Write the longest run of a machine as an SVG picture, with races in red."""
    replace_file(path, svg(_longest(recorder).timeline, races=recorder.races))


def _longest(recorder: ProcessRecorder) -> TraceData:
    return max(recorder.traces, key=lambda trace: len(trace.slices), default=TraceData({}, True))
