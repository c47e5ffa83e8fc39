"""The ranges and marks of a program with their times, for traces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnnotatedRange:
    """A range or mark of the program, in ns. A mark has no duration. `number` is None for ranges of a thread's
    stack.
    """

    text: str
    thread: int
    begin_ns: int
    end_ns: int
    depth: int = 0
    number: int | None = None

    @property
    def is_mark(self) -> bool:
        return self.begin_ns == self.end_ns and self.depth < 0


class RangeRecorder:
    """A subscriber of `annotations` that collects ranges. Threads are numbered in the order of their first
    range.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.found: list[AnnotatedRange] = []
        self._clock = clock
        self.threads: dict[int, int] = {}  # identifier -> number
        self._open: dict[int, list[tuple[str, int]]] = {}
        self._numbered: dict[int, tuple[str, int, int]] = {}

    def on_range_begin(self, text: str, number: int | None) -> None:
        thread = self._thread()
        if number is None:
            self._open.setdefault(thread, []).append((text, self._clock()))
        else:
            self._numbered[number] = (text, thread, self._clock())

    def on_range_end(self, number: int | None) -> None:
        if number is not None:
            if (start := self._numbered.pop(number, None)) is not None:
                text, thread, begin = start
                self.found.append(AnnotatedRange(text, thread, begin, self._clock(), 0, number))
            return
        thread = self._thread()
        stack = self._open.get(thread)
        if stack:  # else it began before the subscription
            text, begin = stack.pop()
            self.found.append(AnnotatedRange(text, thread, begin, self._clock(), len(stack)))

    def end_all(self) -> None:
        """End the open ranges, because the run ends."""
        now = self._clock()
        for thread, stack in self._open.items():
            while stack:
                text, begin = stack.pop()
                self.found.append(AnnotatedRange(text, thread, begin, now, len(stack)))
        for number, (text, thread, begin) in self._numbered.items():
            self.found.append(AnnotatedRange(text, thread, begin, now, 0, number))
        self._numbered.clear()

    def on_mark(self, text: str) -> None:
        now = self._clock()
        self.found.append(AnnotatedRange(text, self._thread(), now, now, -1))

    def _thread(self) -> int:
        return self.threads.setdefault(threading.get_ident(), len(self.threads))
