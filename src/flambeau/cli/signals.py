"""`Stopping`: SIGINT and SIGTERM end a program so that its report can still be written."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Terminated(SystemExit):
    """The exception that SIGTERM raises in the program, so that the program ends like one that calls `sys.exit`."""


class Stopping:
    """A context manager that stores the first of these signals in `received` and raises it in the main thread.

    A second signal has the system's default effect, so a program that catches the first can be ended. Signals that are
    ignored or have a custom handler are left unchanged.
    """

    def __init__(self, *signals: int) -> None:
        self._signals = signals
        self._outer: dict[int, Any] = {}
        self.received: int | None = None

    @property
    def status(self) -> int:
        """Return the exit status with which a shell reports a program that the signal ended."""
        return 128 + (self.received or 0)

    def __enter__(self) -> Stopping:
        usual = (signal.SIG_DFL, signal.default_int_handler)
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if signal.getsignal(number) in usual:
                    self._outer[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._outer.items():
            # otherwise the program has installed another handler
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)

    def check(self) -> None:
        """Raise the signal again if the program has caught it."""
        if self.received is not None:
            raise _exception(self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, signal.SIG_DFL)
        raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(128 + number)
