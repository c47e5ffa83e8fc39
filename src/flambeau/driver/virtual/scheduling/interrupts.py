"""Deferral of Ctrl-C and SIGTERM while commands run, so that no command is lost.

Python raises KeyboardInterrupt, or a handler's exception, between any two instructions: inside a kernel's
body, which then has half its effect, or between taking a command from the queue and running it. Commands
run while the host waits; there a signal is deferred until the running command is done. The remaining
commands stay queued, as on hardware.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: that looks up enumerations, 10 us a wait
import threading
from collections.abc import Callable
from typing import Any

_HELD = (_signal.SIGINT, _signal.SIGTERM)


class Interrupts:
    """A context manager that collects signals and delivers them to the program's own handlers on exit.

    Python interrupts only the main thread; in other threads this does nothing. A handler that raises
    KeyboardInterrupt, as Python's default handler does, raises it from the `with` statement.
    """

    __slots__ = ("_outer", "pending")

    def __enter__(self) -> Interrupts:
        self.pending: int | None = None
        self._outer: list[tuple[int, Callable[[int, Any], Any]]] = []
        if threading.get_ident() == threading.main_thread().ident:
            for number in _HELD:
                outer = _signal.getsignal(number)
                if callable(outer):  # neither ignored nor left to the system
                    self._outer.append((number, outer))
                    _signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, outer in self._outer:
            _signal.signal(number, outer)
        for number, outer in self._outer:
            if self.pending == number:
                outer(number, None)

    def _note(self, signum: int, frame: Any) -> None:
        self.pending = signum
