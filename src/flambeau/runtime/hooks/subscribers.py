"""`Subscribers`: the objects that are notified of one kind of event."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Subscribers(Generic[T]):
    """The subscribers to one kind of event, in the order in which they subscribed.

    Attributes:
        members: The subscribers. Each change replaces the tuple, so threads iterate over it without a lock.
    """

    __slots__ = ("_lock", "members")

    def __init__(self) -> None:
        self.members: tuple[T, ...] = ()
        self._lock = threading.Lock()

    def add(self, subscriber: T) -> None:
        """Notify `subscriber` of all later events, after the earlier subscribers."""
        with self._lock:
            self.members = (*self.members, subscriber)

    def remove(self, subscriber: T) -> None:
        """Stop notifying `subscriber`. Does nothing if it has not subscribed."""
        with self._lock:
            self.members = tuple([other for other in self.members if other is not subscriber])
