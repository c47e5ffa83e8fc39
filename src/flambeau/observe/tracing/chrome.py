"""The Trace Event Format, which ui.perfetto.dev and chrome://tracing read.

Devices are processes; the program is process -1. Traces and profiles are written here.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

from flambeau.core.files import replace_file
from flambeau.observe.tracing.range_recorder import AnnotatedRange

PROGRAM = -1  # its process number


class ChromeTrace:
    """A document of events in the order in which they are added. Times are ns here, and microseconds in the
    format.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._arrows = 0

    def process(self, pid: int, name: str) -> None:
        """Name a process. Processes are shown in the order of their numbers."""
        self._write_name("process", {"pid": pid}, name, pid)

    def thread(self, pid: int, tid: int, name: str, order: int) -> None:
        """Name a row of a process."""
        self._write_name("thread", {"pid": pid, "tid": tid}, name, order)

    def _write_name(self, what: str, ids: dict[str, int], name: str, order: int) -> None:
        self.events.append({"ph": "M", "name": f"{what}_name", **ids, "args": {"name": name}})
        self.events.append({"ph": "M", "name": f"{what}_sort_index", **ids, "args": {"sort_index": order}})

    def slice(
        self,
        pid: int,
        tid: int,
        name: str,
        category: str,
        begin_ns: float,
        end_ns: float,
        args: dict[str, Any],
    ) -> None:
        """Add an event with a duration to a row."""
        at = {"pid": pid, "tid": tid, "ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
        self.events.append({"ph": "X", "name": name, "cat": category, **at, "args": args})

    def instant(
        self, pid: int, tid: int, name: str, category: str, time_ns: float, args: dict[str, Any]
    ) -> None:
        """Add an event without duration to a row."""
        at = {"pid": pid, "tid": tid, "ts": time_ns / 1000}
        self.events.append({"ph": "i", "s": "t", "name": name, "cat": category, **at, "args": args})

    def arrow(
        self, category: str, name: str, start: tuple[int, int, float], end: tuple[int, int, float],
        args: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Add an arrow from one slice to another; each end is (pid, tid, a time within the slice)."""
        self._arrows += 1
        ids = {"cat": category, "name": name, "id": self._arrows}
        for head, (pid, tid, time_ns) in (({"ph": "s"}, start), ({"ph": "f", "bp": "e"}, end)):
            event = {**head, **ids, "pid": pid, "tid": tid, "ts": time_ns / 1000}
            self.events.append(event | {"args": args} if args else event)

    def counter(self, pid: int, name: str, time_ns: float, nbytes: int) -> None:
        """Set a counter of a process from this time on."""
        args = {"bytes": nbytes}
        self.events.append({"ph": "C", "pid": pid, "name": name, "ts": time_ns / 1000, "args": args})

    def range(self, pid: int, tid: int, found: AnnotatedRange) -> None:
        """Add a range or mark of the program."""
        at = {"pid": pid, "tid": tid, "name": found.text, "ts": found.begin_ns / 1000}
        if found.is_mark:
            self.events.append({"ph": "i", "s": "t", "cat": "mark", **at})
        elif found.number is None:
            self.slice(pid, tid, found.text, "range", found.begin_ns, found.end_ns, {})
        else:
            self.events.append({"ph": "b", "cat": "range", "id": found.number, **at})
            at["ts"] = found.end_ns / 1000
            self.events.append({"ph": "e", "cat": "range", "id": found.number, **at})

    def document(self, **metadata: Any) -> dict[str, Any]:
        """Return the document, for `json.dump`."""
        return {"traceEvents": self.events, "displayTimeUnit": "ns", **metadata}

    def write(self, path: str | os.PathLike[str], **metadata: Any) -> None:
        """Write the document to a file, compressed if its name ends in `.gz`."""
        text = json.dumps(self.document(**metadata)).encode()
        replace_file(path, gzip.compress(text) if str(path).endswith(".gz") else text)
