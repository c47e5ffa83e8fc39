"""`Others`: what other processes may know of this one's streams: the points of events that they have.

# Note [Other processes]
What another process does is not seen. It can come after this one's work by an event that it has a handle of, and this
one after its, by such an event again: so whoever waits for an event that is shared waits for every point that this
process has recorded in one so far, and for all that the other did before. That may order too much, never too little:
no alarm is false. What it cannot show, the certificate says: memory was shared.
"""

from __future__ import annotations

from collections.abc import Iterable

from flambeau.observe.clocks import LogicalThread, Reached


class Others:
    """The events that other processes share, and the last point of each stream that any of them marked."""

    def __init__(self) -> None:
        self._events: set[int] = set()
        self._points: dict[LogicalThread, Reached] = {}

    def share(self, event: int, point: Reached | None) -> None:
        """Another process has, or had, the event. point: what it marks here."""
        self._events.add(event)
        self.on_record(event, point)

    def on_record(self, event: int, point: Reached | None) -> None:
        """An event marks a point from now on."""
        if event in self._events and point is not None:
            self._points[point[0][0]] = point

    def forget(self, event: int) -> None:
        self._events.discard(event)

    def points(self, event: int) -> Iterable[Reached]:
        """What comes before a wait for an event, beyond what it marks here."""
        return list(self._points.values()) if event in self._events else ()
