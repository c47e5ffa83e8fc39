"""A progress line on a terminal. Nothing is written if the output is not a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Self, TextIO, TypeVar

T = TypeVar("T")
_QUIET, _BETWEEN = 1.0, 0.2  # seconds before the first line, and between two
_STRIDE = 256  # items of an iteration between two looks at the clock


class StatusLine:
    """A line of a terminal that each text replaces."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._width = 0  # width of the text on the screen

    def show(self, text: str) -> None:
        """Replace the text, cut to the width of the terminal."""
        text = text[: columns_of(self._file) - 1]
        self._file.write(f"\r{text.ljust(self._width)}")
        self._file.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Remove the text. Idempotent."""
        if self._width:
            self._file.write(f"\r{' ' * self._width}\r")
            self._file.flush()
            self._width = 0


class Meter:
    """A progress line on stderr with share, rate and remaining time, shown after a second and only on a terminal.

    A `with` block removes the line at its end.

    Attributes:
        total: Total amount of work, in `unit`.
    """

    def __init__(self, title: str, total: float, unit: str, file: TextIO | None = None) -> None:
        file = sys.stderr if file is None else file
        self.total = total
        self._title, self._unit = title, unit
        self._line = StatusLine(file) if is_terminal(file) else None
        self._start = monotonic()
        self._next = self._start + _QUIET

    def update(self, done: float) -> None:
        """Show the amount done, if an update is due."""
        if self._line is None or done <= 0:
            return
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _BETWEEN
        passed = now - self._start
        left = max(self.total - done, 0) / done * passed
        self._line.show(
            f"{self._title} {min(done / self.total, 1):4.0%}, {done:,.0f} of {self.total:,.0f} {self._unit}, "
            f"{done / passed:,.0f} a second, {clock_text(left)} left"
        )

    def clear(self) -> None:
        """Remove the line: the work is done, or something else is to be written."""
        if self._line is not None:
            self._line.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clear()

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, each of which is one unit of work."""
        with self:
            for number, item in enumerate(items):
                if number % _STRIDE == 0:
                    self.update(number)
                yield item


def is_terminal(file: TextIO | None) -> bool:
    """Return True if a line of `file` can be replaced."""
    return file is not None and not file.closed and file.isatty() and os.environ.get("TERM") != "dumb"


def clock_text(seconds: float) -> str:
    """Return a duration as "1:05" or "1:00:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def columns_of(file: TextIO) -> int:
    """Return the width of a terminal; 80 if it is not known."""
    try:
        return os.get_terminal_size(file.fileno()).columns or 80
    except (OSError, ValueError):  # not a terminal of the system
        return 80
