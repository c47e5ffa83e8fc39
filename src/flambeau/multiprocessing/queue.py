"""Queues whose `put` pickles immediately.

# Note [Put and pickled]
The standard library's `Queue.put` leaves pickling to a thread, which reads the tensor, moves it to shared memory or
records an event at some later time. Later changes by the program may then be sent or not, the event is recorded on the
thread's stream instead of the program's, and an error is only printed. Here the message has the state at the call of
`put`, runs repeat, and errors are raised by the call.
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
        """Release the shared memory of a message that no process will receive."""
        pickle.loads(self._data)


class _Eager:
    """A mixin for queues that pickle in `put`. See Note [Put and pickled]."""

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put a message.

        Raises:
            queue.Full: If there was no room within `timeout`. Errors of pickling are raised as well.
        """
        message = _Pickled(obj)
        try:
            super().put(message, block, timeout)  # type: ignore[misc]
        except (Full, ValueError):
            message.take_back()
            raise


class Queue(_Eager, queues.Queue):  # type: ignore[type-arg]
    """A `multiprocessing.Queue` whose `put` pickles immediately. See Note [Put and pickled]."""


class JoinableQueue(_Eager, queues.JoinableQueue):  # type: ignore[type-arg]
    """A `multiprocessing.JoinableQueue` whose `put` pickles immediately. See Note [Put and pickled]."""


SimpleQueue = queues.SimpleQueue
