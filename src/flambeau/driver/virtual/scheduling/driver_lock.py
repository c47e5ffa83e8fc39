"""`Gate`: the lock of a virtual driver. What finished commands held is dropped behind it, not inside.

A command keeps what it uses alive: host memory, a function. With the last reference may go something whose destructor
asks for other locks, a race detector's say, while their holder waits for this one.
"""

from __future__ import annotations

from threading import RLock
from typing import Any


class Gate:
    """A lock that its holder may enter again."""

    __slots__ = ("_depth", "_left", "_lock")

    def __init__(self) -> None:
        self._lock: Any = RLock()
        self._depth = 0
        self._left: list[Any] = []

    def leave(self, what: object) -> None:
        """Let go of something when the holder is out."""
        self._left.append(what)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        spent = None
        if self._left and not self._depth:
            spent, self._left = self._left, []
        self._lock.release()
        del spent  # here: destructors run where the lock is free

    # -- as threading.Condition wants a lock ----------------------------------------------------------
    def acquire(self, *args: Any) -> bool:
        got: bool = self._lock.acquire(*args)
        self._depth += got
        return got

    def release(self) -> None:
        self.__exit__()

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> tuple[int, Any]:
        """Let go, however often it was entered."""
        depth, self._depth = self._depth, 0
        spent, self._left = self._left, []
        state = self._lock._release_save()
        del spent
        return depth, state

    def _acquire_restore(self, state: tuple[int, Any]) -> None:
        depth, inner = state
        self._lock._acquire_restore(inner)
        self._depth = depth
