"""The order that collectives establish between the streams of their members.

A contribution happens after all earlier commands of its stream. If data flows from one member to another,
the end of the receiver's contribution happens after the commands before the sender's. In an all_reduce
every end happens after every start; in a broadcast after the root's start; a receipt after the commands
before the send. The end of a member's own contribution says nothing about the others: real rings finish at
different times.

Members are enqueued one after the other. When a later one is enqueued, the streams of the earlier ones
learn of it then. Streams that had waited for them before do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.driver.collective_rules import PAIRED, Course, Key, orders, spans
from flambeau.driver.protocol import Collective
from flambeau.observe.accesses import Key as Range
from flambeau.observe.clocks import Snapshot
from flambeau.observe.detector import Detector


class ObservedContribution:
    """A member's contribution to a collective: the call, its stream, and the stream's position before it."""

    __slots__ = ("call", "point", "rank", "stream")

    def __init__(self, rank: int, call: Collective, stream: int, point: Snapshot) -> None:
        self.rank = rank
        self.call = call
        self.stream = stream
        self.point = point


class ObservedCommunicator:
    """The size of a communicator, and the contributions to its incomplete collectives."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.meetings: dict[Key, list[ObservedContribution]] = {}


class Meetings:
    """The pending collectives of one detector, to which they add their order. See the module's docstring."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._by_id: dict[bytes, ObservedCommunicator] = {}
        self._members: dict[int, tuple[ObservedCommunicator, Course]] = {}

    def join(self, unique: bytes, size: int, members: Sequence[tuple[int, int]]) -> None:
        """Add members that have joined a communicator, as (handle, rank)."""
        comm = self._by_id.setdefault(unique, ObservedCommunicator(size))
        for handle, rank in members:
            self._members[handle] = (comm, Course(rank))

    def operands(self, calls: Sequence[tuple[int, Collective]]) -> tuple[list[Range], list[Range]]:
        """Return the ranges of memory that contributions write and those that they read.

        Args:
            calls: (member's handle, contribution) pairs.
        """
        writes: list[Range] = []
        reads: list[Range] = []
        for handle, call in calls:
            comm, course = self._members[handle]
            written, read = spans(call, course.rank, comm.size)
            writes += [written] if written is not None and written[1] else []
            reads += [read] if read is not None and read[1] else []
        return writes, reads

    def leave(self, handle: int) -> None:
        self._members.pop(handle, None)

    def meet(self, handle: int, call: Collective, stream: int, point: Snapshot) -> None:
        """Add a contribution that was enqueued. `point` is the stream's position before it."""
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
