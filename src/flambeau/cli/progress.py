"""`Progress`: how far an exploration is: one line that changes on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import os
from time import monotonic
from typing import TextIO

from flambeau.testing.exploration import Exploration

_ON_TERMINAL, _ELSEWHERE = 0.2, 10.0  # seconds between two lines


class Progress:
    """Writes to `file` how much of `schedules` orders and `seconds` has passed; either may be None."""

    def __init__(self, file: TextIO, schedules: int | None, seconds: float | None) -> None:
        self._file, self._schedules, self._seconds = file, schedules, seconds
        self._changes = file.isatty() and os.environ.get("TERM") != "dumb"
        self._start = monotonic()
        self._next = self._start + (_ON_TERMINAL if self._changes else _ELSEWHERE)
        self._width = 0  # of the line on the screen

    def update(self, found: Exploration) -> None:
        """Write a line if it is time for one."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + (_ON_TERMINAL if self._changes else _ELSEWHERE)
        line = self._line(found, now - self._start)
        if self._changes:
            line = line[: _columns(self._file) - 1]
            self._file.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
        else:
            self._file.write(line + "\n")
        self._file.flush()

    def clear(self) -> None:
        """Remove the line from a terminal: something else is to be written there."""
        if self._width:
            self._file.write(f"\r{' ' * self._width}\r")
            self._file.flush()
            self._width = 0

    def _line(self, found: Exploration, passed: float) -> str:
        share = self._share(found, passed)
        looked = f"{found.schedules:,}" + (f" of {self._schedules:,}" if self._schedules else "")
        parts = [
            f"explore {share:4.0%}",
            f"{looked} schedules",
            f"{found.runs:,} runs, {found.runs / passed:.1f} a second",
            f"{_clock((1 - share) / share * passed)} left",
        ]
        wrong = len(found.failures) + len(found.races)
        return ", ".join([*parts, *([f"{wrong} failures and races"] if wrong else [])])

    def _share(self, found: Exploration, passed: float) -> float:
        """How much is done, above 0: whichever end is nearer."""
        shares = [found.schedules / self._schedules] if self._schedules else []
        shares += [passed / self._seconds] if self._seconds else []
        return min(max(shares), 1.0)


def _columns(file: TextIO) -> int:
    try:
        return os.get_terminal_size(file.fileno()).columns or 80
    except (OSError, ValueError):  # not a terminal of the system's
        return 80


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
