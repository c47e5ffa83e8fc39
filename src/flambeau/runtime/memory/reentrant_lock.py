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
    """A lock that knows when its holder enters again. `after` runs behind a turn that finds `left` filled.

    `acquire`, `release` and `busy` are for a path that cannot afford `with`: acquire, note and set `busy`, put it back,
    release, then look at `left`.
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
        """Wait for the turn. True if this thread is in its turn already."""
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
        """Enter unless somebody, this thread included, is in a turn."""
        if not self.acquire(blocking=False):
            return False
        if self.busy:
            self.release()
            return False
        self.busy = True
        return True

    def leave(self) -> None:
        """The end of a turn that `try_enter` began."""
        self.busy = False
        self.release()

    def serve(self, receive: Callable[[], None]) -> None:
        """Call `receive` while something is left, unless somebody has the turn: who has it does so afterwards."""
        while self._left and self.try_enter():
            try:
                receive()
            finally:
                self.leave()
