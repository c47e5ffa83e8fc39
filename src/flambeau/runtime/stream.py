"""`Stream`: a queue of one device."""

from __future__ import annotations

from flambeau.runtime.context import Context


class Stream:
    """A linear sequence of execution on one device. (Skeleton: the runtime room completes it.)"""

    __slots__ = ("__weakref__", "context", "handle", "priority")

    def __init__(self, context: Context, handle: int, priority: int = 0) -> None:
        self.context = context
        self.handle = handle
        self.priority = priority
