"""`Interrupts`: Ctrl-C waits while commands run, so that none is lost.

Python raises KeyboardInterrupt between any two of its instructions: in the middle of a kernel's body, which then
has half its effect, or between taking a command and running it. Commands run while the host waits, so there the
interrupt is held back until the command that runs is done. What is left stays queued, as on hardware.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: that looks up enumerations, 10 us a wait
import threading
from collections.abc import Callable
from typing import Any


class Interrupts:
    """Context manager: SIGINT is noted in `pending`, and delivered to the program's own handler on leaving.

    Only the main thread is ever interrupted; elsewhere this does nothing. A handler that raises
    KeyboardInterrupt, as Python's does, raises it from the `with` statement.
    """

    __slots__ = ("_outer", "pending")

    def __enter__(self) -> Interrupts:
        self.pending = False
        self._outer: Callable[[int, Any], Any] | None = None
        if threading.get_ident() == threading.main_thread().ident:
            outer = _signal.getsignal(_signal.SIGINT)
            if callable(outer):  # not ignored, nor left to the system
                self._outer = outer
                _signal.signal(_signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._outer is not None:
            _signal.signal(_signal.SIGINT, self._outer)
            if self.pending:
                self._outer(_signal.SIGINT, None)

    def _note(self, signum: int, frame: Any) -> None:
        self.pending = True
