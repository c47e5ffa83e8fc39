"""`Meetings`: what collectives order, between the streams of their members.

A part comes after all that its stream was given before, as any command. Where the numbers of one member go to another,
the end of the other's part comes after what stood before the one's: so in an all_reduce everybody's end after
everybody's start, in a broadcast after the root's start, in a message the receipt after what stood before the sending.
That a member's own part is over says nothing of the others' parts: real rings finish at different times.

Members are queued one after the other. One that was queued before learns of one that comes later as soon as that comes;
its stream knows then, and streams that waited for it before do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.driver.api import Collective
from flambeau.driver.meetings import PAIRED, Course, Key, orders
from flambeau.observe.clocks import Snapshot
from flambeau.observe.detector import Detector


class ObservedContribution:
    """A member's part: what it is, on which stream, and the point that the stream had reached before."""

    __slots__ = ("call", "point", "rank", "stream")

    def __init__(self, rank: int, call: Collective, stream: int, point: Snapshot) -> None:
        self.rank = rank
        self.call = call
        self.stream = stream
        self.point = point


class ObservedCommunicator:
    """How many ranks there are, and the parts of the meetings that are not complete."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.meetings: dict[Key, list[ObservedContribution]] = {}


class Meetings:
    """Feeds a detector with the order that collectives bring. See the module's docstring."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._by_id: dict[bytes, ObservedCommunicator] = {}
        self._members: dict[int, tuple[ObservedCommunicator, Course]] = {}

    def join(self, unique: bytes, size: int, members: Sequence[tuple[int, int]]) -> None:
        """(handle, rank) of members that have joined."""
        comm = self._by_id.setdefault(unique, ObservedCommunicator(size))
        for handle, rank in members:
            self._members[handle] = (comm, Course(rank))

    def rank(self, handle: int) -> int:
        return self._members[handle][1].rank

    def size(self, handle: int) -> int:
        return self._members[handle][0].size

    def leave(self, handle: int) -> None:
        self._members.pop(handle, None)

    def meet(self, handle: int, call: Collective, stream: int, point: Snapshot) -> None:
        """A part was queued; `point` is what its stream had reached before."""
        comm, course = self._members[handle]
        key = course.next_key(call)
        part = ObservedContribution(course.rank, call, stream, point)
        others = comm.meetings.setdefault(key, [])
        for other in others:
            if orders(other.call, other.rank, part.rank):
                self._detector.after(part.stream, other.point)
            if orders(call, part.rank, other.rank):
                self._detector.after(other.stream, part.point)
        others.append(part)
        if len(others) == (2 if call.kind in PAIRED else comm.size):
            del comm.meetings[key]
