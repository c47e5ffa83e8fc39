"""`Progress`: the progress of an exploration: one line that changes on a terminal, elsewhere a line every ten
seconds.
"""

from __future__ import annotations

from time import monotonic
from typing import TextIO

from flambeau.core.status_line import StatusLine, clock_text, is_terminal
from flambeau.testing.exploration import Exploration

_ON_TERMINAL, _ELSEWHERE = 0.2, 10.0  # seconds between two lines, on a terminal and elsewhere


class Progress:
    """The progress of an exploration, written to `file`: of `schedules` orders and `seconds`, either of which may be
    None.
    """

    def __init__(self, file: TextIO, schedules: int | None, seconds: float | None) -> None:
        self._file, self._schedules, self._seconds = file, schedules, seconds
        self._line = StatusLine(file) if is_terminal(file) else None
        self._start = monotonic()
        self._next = self._start + self._interval

    def update(self, found: Exploration) -> None:
        """Write a progress line if one is due."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        text = self._text(found, now - self._start)
        if self._line is not None:
            self._line.show(text)
        else:
            self._file.write(text + "\n")
            self._file.flush()

    def clear(self) -> None:
        """Remove the line from a terminal, because other text follows."""
        if self._line is not None:
            self._line.clear()

    @property
    def _interval(self) -> float:
        return _ELSEWHERE if self._line is None else _ON_TERMINAL

    def _text(self, found: Exploration, passed: float) -> str:
        share = self._share(found, passed)
        looked = f"{found.schedules:,}" + (f" of {self._schedules:,}" if self._schedules else "")
        parts = [
            f"explore {share:4.0%}",
            f"{looked} schedules",
            f"{found.runs:,} runs, {found.runs / passed:.1f} a second",
            f"{clock_text((1 - share) / share * passed)} left",
        ]
        wrong = [("failure", len(found.failures)), ("race", len(found.races))]
        return ", ".join([*parts, *[f"{n:,} {kind}{'s' * (n > 1)}" for kind, n in wrong if n]])

    def _share(self, found: Exploration, passed: float) -> float:
        """Return the fraction that is complete, above 0: the larger of the fractions of orders and of time."""
        shares = [found.schedules / self._schedules] if self._schedules else []
        shares += [passed / self._seconds] if self._seconds else []
        return min(max(shares), 1.0)
