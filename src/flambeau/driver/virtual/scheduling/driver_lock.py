"""The lock of a virtual driver. References that finished commands held are dropped after it is released.

A command keeps the memory and functions that it uses alive. Dropping the last reference may run a
destructor that needs another lock, such as a race detector's, whose holder may be waiting for this one.
"""

from __future__ import annotations

from threading import RLock
from typing import Any


class Gate:
    """A reentrant lock that drops references after its release."""

    __slots__ = ("_depth", "_left", "_lock")

    def __init__(self) -> None:
        self._lock: Any = RLock()
        self._depth = 0
        self._left: list[Any] = []

    def leave(self, what: object) -> None:
        """Drop the reference to an object after the lock is released."""
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
        del spent  # destructors run here, where the lock is free

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
        """Release the lock completely, even if it was acquired several times."""
        depth, self._depth = self._depth, 0
        spent, self._left = self._left, []
        state = self._lock._release_save()
        del spent
        return depth, state

    def _acquire_restore(self, state: tuple[int, Any]) -> None:
        depth, inner = state
        self._lock._acquire_restore(inner)
        self._depth = depth
