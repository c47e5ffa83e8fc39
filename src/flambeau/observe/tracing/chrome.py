"""`ChromeTrace`: the Trace Event Format, which ui.perfetto.dev and chrome://tracing read.

Processes are devices, and the program, which is process -1. The one writer of this format: profiles use it too.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

from flambeau.core.files import replace_file
from flambeau.observe.tracing.range_recorder import AnnotatedRange

PROGRAM = -1  # its process


class ChromeTrace:
    """Events in the order in which they are added. Times are nanoseconds here, and microseconds in the format."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._arrows = 0

    def process(self, pid: int, name: str) -> None:
        """Name a process; they are shown in the order of their numbers."""
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
        """Something that takes time on a row."""
        at = {"pid": pid, "tid": tid, "ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
        self.events.append({"ph": "X", "name": name, "cat": category, **at, "args": args})

    def instant(
        self, pid: int, tid: int, name: str, category: str, time_ns: float, args: dict[str, Any]
    ) -> None:
        """Something that happens on a row."""
        at = {"pid": pid, "tid": tid, "ts": time_ns / 1000}
        self.events.append({"ph": "i", "s": "t", "name": name, "cat": category, **at, "args": args})

    def arrow(
        self, category: str, name: str, start: tuple[int, int, float], end: tuple[int, int, float],
        args: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """From a slice to another: (pid, tid, time within it)."""
        self._arrows += 1
        ids = {"cat": category, "name": name, "id": self._arrows}
        for head, (pid, tid, time_ns) in (({"ph": "s"}, start), ({"ph": "f", "bp": "e"}, end)):
            event = {**head, **ids, "pid": pid, "tid": tid, "ts": time_ns / 1000}
            self.events.append(event | {"args": args} if args else event)

    def counter(self, pid: int, name: str, time_ns: float, nbytes: int) -> None:
        """A figure of a process from this time on."""
        args = {"bytes": nbytes}
        self.events.append({"ph": "C", "pid": pid, "name": name, "ts": time_ns / 1000, "args": args})

    def range(self, pid: int, tid: int, found: AnnotatedRange) -> None:
        """A range of the program, or its mark."""
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
        """The whole, for `json.dump`."""
        return {"traceEvents": self.events, "displayTimeUnit": "ns", **metadata}

    def write(self, path: str | os.PathLike[str], **metadata: Any) -> None:
        """Into a file; compressed if it is called `.gz`."""
        text = json.dumps(self.document(**metadata)).encode()
        replace_file(path, gzip.compress(text) if str(path).endswith(".gz") else text)
