"""`Turn`: who may change an allocator's structures, told so that finalizers can neither deadlock nor corrupt.

# Note [Finalizers]
The garbage collector may run any code in the middle of a search for memory, in the same thread. So a
destructor only appends what it frees to a list; whoever cannot enter leaves it there, and whoever has the
turn looks into the list when it is over. What a finalizer allocates meanwhile must touch no structure that
the search is in the middle of changing: entering says that the thread is in its turn already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized


class Turn:
    """A lock that knows when its holder enters again. `after` runs behind a turn that finds `left` filled."""

    __slots__ = ("_after", "_depth", "_left", "_lock")

    def __init__(self, left: Sized, after: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._left = left
        self._after = after

    def __enter__(self) -> bool:
        """Wait for the turn. True if this thread is in its turn already."""
        self._lock.acquire()
        self._depth += 1
        return self._depth > 1

    def __exit__(self, *error: object) -> None:
        self.leave()
        if self._left:
            self._after()

    def try_enter(self) -> bool:
        """Enter unless somebody, this thread included, is in a turn."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._depth:
            self._lock.release()
            return False
        self._depth = 1
        return True

    def leave(self) -> None:
        self._depth -= 1
        self._lock.release()
