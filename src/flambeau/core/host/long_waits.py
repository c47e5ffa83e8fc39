"""`LongWait`: a line on stderr for every 30 seconds of a wait for other processes, with what these do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

EVERY_S = 30.0  # seconds between two lines about one wait


class LongWait:
    """A wait that is reported while it lasts.

    Args:
        describe: Returns what is waited for, as in "for a store"; "" if there is nothing to report now.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._since = self._reported = time.monotonic()

    @property
    def left_s(self) -> float:
        """Return the seconds until the next line."""
        return max(0.0, self._reported + EVERY_S - time.monotonic())

    def report(self) -> None:
        """Print a line if 30 seconds have passed since the last one."""
        now = time.monotonic()
        if now - self._reported >= EVERY_S:
            self._reported = now
            if words := self._describe():
                print(
                    f"flambeau: this process has waited {now - self._since:.0f} s {words}",
                    file=sys.stderr,
                    flush=True,
                )
