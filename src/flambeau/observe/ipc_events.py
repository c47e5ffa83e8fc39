"""Events that are shared with other processes, and the positions that they may have been recorded at.

# Note [Other processes] The detector does not see other processes. Another process can be ordered after
this one by an event that it has a handle of, and this one after the other in the same way. A wait for a
shared event is therefore treated as a wait for every position that this process has recorded in a shared
event so far. This may order too much, but never too little: no alarm is false. The certificate states that
memory was shared.
"""

from __future__ import annotations

from collections.abc import Iterable

from flambeau.observe.clocks import LogicalThread, Reached


class Others:
    """The shared events, and the last position of each stream that one of them recorded."""

    def __init__(self) -> None:
        self._events: set[int] = set()
        self._points: dict[LogicalThread, Reached] = {}

    def share(self, event: int, point: Reached | None) -> None:
        """Add an event that other processes can use. `point` is the position that it records now."""
        self._events.add(event)
        self.on_record(event, point)

    def on_record(self, event: int, point: Reached | None) -> None:
        """Record that an event has a new position."""
        if event in self._events and point is not None:
            self._points[point[0][0]] = point

    def forget(self, event: int) -> None:
        self._events.discard(event)

    def points(self, event: int) -> Iterable[Reached]:
        """Return the positions that happen before a wait for an event, other than its own record."""
        return list(self._points.values()) if event in self._events else ()
