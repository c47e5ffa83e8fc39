"""The allocator's lock, which finalizers can neither deadlock nor corrupt.

# Note [Finalizers]
The garbage collector may run any code during a search for memory, in the same thread. So a destructor only appends
the freed block to a list and tries to enter. If it cannot, the current holder processes the list on release. A
finalizer that allocates must not touch structures that the interrupted search is changing: entering the lock shows
that its thread holds the lock already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized


class AllocatorLock:
    """A reentrant lock that reports reentry and runs a callback on release if deferred work exists.

    A path that cannot afford `with` uses `acquire`, `release` and `busy` directly: acquire, save and set `busy`,
    restore it, release, then check for deferred work.

    Attributes:
        busy: True while a thread is inside.
    """

    __slots__ = ("_after", "_left", "_outer", "acquire", "busy", "release")

    def __init__(self, left: Sized, after: Callable[[], None]) -> None:
        lock = threading.RLock()
        self.acquire, self.release = lock.acquire, lock.release
        self.busy = False
        self._left = left
        self._after = after
        self._outer: list[bool] = []

    def __enter__(self) -> bool:
        """Acquire the lock. Returns True if this thread holds it already."""
        self.acquire()
        nested = self.busy
        self._outer.append(nested)
        self.busy = True
        return nested

    def __exit__(self, *error: object) -> None:
        self.busy = self._outer.pop()
        self.release()
        if self._left and not self.busy:
            self._after()

    def try_enter(self) -> bool:
        """Acquire the lock unless any thread, this one included, holds it. Returns True on success."""
        if not self.acquire(blocking=False):
            return False
        if self.busy:
            self.release()
            return False
        self.busy = True
        return True

    def leave(self) -> None:
        """Release the lock after a successful `try_enter`."""
        self.busy = False
        self.release()

    def serve(self, receive: Callable[[], None]) -> None:
        """Call `receive` while deferred frees exist. Another thread that holds the lock calls it on release."""
        while self._left and self.try_enter():
            try:
                receive()
            finally:
                self.leave()
