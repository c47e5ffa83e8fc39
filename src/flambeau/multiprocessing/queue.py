"""Queues whose `put` pickles at once.

# Note [Put and pickled]
The standard library's `Queue.put` leaves pickling to a thread. A tensor that is put is then read, moved to shared
memory, or marked by an event, at some later time: whatever the program does to it meanwhile is sent or not, the event
is recorded on the thread's stream instead of the program's, and an error is printed and forgotten. Here the message
is what `put` was given, runs repeat, and errors are raised where they were made.
"""

from __future__ import annotations

import pickle
from multiprocessing import queues
from multiprocessing.reduction import ForkingPickler
from queue import Full
from typing import Any

__all__ = ["JoinableQueue", "Queue", "SimpleQueue"]


class _Pickled:
    """A message that is pickled already; its pickle is unpickled to the message."""

    __slots__ = ("_data",)

    def __init__(self, message: Any) -> None:
        self._data = bytes(ForkingPickler.dumps(message))

    def __reduce__(self) -> Any:
        return pickle.loads, (self._data,)

    def take_back(self) -> None:
        """Nobody will receive it: give back what was shared for that."""
        pickle.loads(self._data)


class _Eager:
    """See Note [Put and pickled]."""

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put a message. Raises what pickling it raises; queue.Full: there was no room in time."""
        message = _Pickled(obj)
        try:
            super().put(message, block, timeout)  # type: ignore[misc]
        except (Full, ValueError):
            message.take_back()
            raise


class Queue(_Eager, queues.Queue):  # type: ignore[type-arg]
    """multiprocessing.Queue, but that `put` pickles. See Note [Put and pickled]."""


class JoinableQueue(_Eager, queues.JoinableQueue):  # type: ignore[type-arg]
    """multiprocessing.JoinableQueue, but that `put` pickles. See Note [Put and pickled]."""


SimpleQueue = queues.SimpleQueue
