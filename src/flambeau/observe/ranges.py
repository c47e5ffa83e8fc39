"""`Ranges`: the ranges and marks of a program with their times, for traces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HOST = -1  # the process that a trace shows them in: those from 0 on are devices


@dataclass(frozen=True, slots=True)
class Range:
    """Times in nanoseconds. A mark takes none. `number` is None for ranges of a thread's stack."""

    text: str
    thread: int
    begin_ns: int
    end_ns: int
    depth: int = 0
    number: int | None = None

    @property
    def is_mark(self) -> bool:
        return self.begin_ns == self.end_ns and self.depth < 0


class Ranges:
    """Collects what `runtime.annotations` tells. Threads are numbered in the order in which they are first heard."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.found: list[Range] = []
        self._clock = clock
        self._threads: dict[int, int] = {}
        self._open: dict[int, list[tuple[str, int]]] = {}
        self._numbered: dict[int, tuple[str, int, int]] = {}

    def began(self, text: str, number: int | None) -> None:
        thread = self._thread()
        if number is None:
            self._open.setdefault(thread, []).append((text, self._clock()))
        else:
            self._numbered[number] = (text, thread, self._clock())

    def ended(self, number: int | None) -> None:
        if number is not None:
            if (begun := self._numbered.pop(number, None)) is not None:
                text, thread, begin = begun
                self.found.append(Range(text, thread, begin, self._clock(), 0, number))
            return
        thread = self._thread()
        stack = self._open.get(thread)
        if stack:  # else it began before anybody listened
            text, begin = stack.pop()
            self.found.append(Range(text, thread, begin, self._clock(), len(stack)))

    def marked(self, text: str) -> None:
        now = self._clock()
        self.found.append(Range(text, self._thread(), now, now, -1))

    def _thread(self) -> int:
        return self._threads.setdefault(threading.get_ident(), len(self._threads))


def trace_events(ranges: list[Range]) -> list[dict[str, Any]]:
    """In the Trace Event Format, as a process "program" above the devices. Times in microseconds, as it wants."""
    if not ranges:
        return []
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": HOST, "args": {"name": "program"}},
        {"ph": "M", "name": "process_sort_index", "pid": HOST, "args": {"sort_index": HOST}},
    ]
    for found in ranges:
        at = {"pid": HOST, "tid": found.thread, "name": found.text, "ts": found.begin_ns / 1000}
        if found.is_mark:
            events.append({"ph": "i", "s": "t", "cat": "mark", **at})
        elif found.number is None:
            duration = (found.end_ns - found.begin_ns) / 1000
            events.append({"ph": "X", "cat": "range", "dur": duration, **at})
        else:
            events.append({"ph": "b", "cat": "range", "id": found.number, **at})
            events.append({"ph": "e", "cat": "range", "id": found.number, **at, "ts": found.end_ns / 1000})
    return events
