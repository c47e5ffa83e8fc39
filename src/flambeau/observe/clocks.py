"""Logical threads and their vector clocks, whose units are numbers of driver calls.

# Note [Clocks] A stream is a logical thread (`agent` in this package). Each command takes the next number
of one counter for the whole process, so a number identifies a command, and of two commands the smaller was requested
first. A clock maps logical threads to numbers: `clock[a] >= n` means that command n of `a`, and all earlier
commands of `a`, happen before the owner of the clock. Two accesses are ordered if the clock of the later
one covers the earlier.

A host action is done when its call returns, so later commands happen after it. The host needs only a clock,
which grows when it waits. A command starts with the host's clock. With several host threads, each has a
clock; see Note [Host threads].

A logical thread outlives its stream, for clocks and events that refer to it. When the stream is destroyed
and the host knows all its commands to be done, later commands happen after them, as if they belonged to
that stream. The next new stream then reuses the logical thread (`begin`). Clocks therefore grow with the
streams that exist at one time, not with all streams.

Clocks are never changed, only replaced. A snapshot, for an event, is three references. A comparison of
identities shows whether a stream has the host's current clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from flambeau.core.callsite import Site, is_within

Clock: TypeAlias = "Mapping[LogicalThread, int]"
Snapshot: TypeAlias = "tuple[LogicalThread, int, Clock]"
"""A position in a stream: the logical thread, its last command, and its clock."""

NOTHING: Clock = {}


def side_stream(ordinal: int, grouped: bool) -> str:
    """Return the name of a side stream (a stream other than the default one) in reports."""
    return f"{'group' if grouped else 'side'} stream {ordinal}"


class LogicalThread:
    """A sequence of ordered steps, usually a stream: the number of its last command and its clock.

    Attributes:
        time: The number of its last command.
        clock: Its vector clock, by the strict order.
        caught: The host clock that it has taken over.
        waits: Other logical thread -> the number waited for and the call site, to explain a wait that was
            too early.
        count: The number of its commands.
        born: The number at which its present stream was created.
        caller: The host thread that used it last, with the number of messages that the thread had sent by
            then.
        past: The host threads that used it earlier, as `caller`, each with the position after its commands. Oldest
            first; kept with several host threads only.
        loose: Its clock by the loose order.
        grouped: True if the present stream belongs to a process group and not to the program.
        captured: The ordinal of the captured stream, for a stream that a graph owns.
        acts: For a host thread, True if it has used tensors or another thread has received a message of it.
    """

    __slots__ = (
        "acts", "born", "caller", "captured", "caught", "clock", "count", "device", "grouped", "handle", "loose",
        "ordinal", "past", "site", "time", "waits",
    )  # fmt: skip

    def __init__(self, device: int) -> None:
        self.device = device
        self.time = 0
        self.acts = False
        self.clock: Clock = NOTHING
        self.loose: Clock = NOTHING

    def begin(self, handle: int, ordinal: int, site: Site | None, born: int) -> None:
        """Initialize the logical thread for a new stream."""
        self.handle = handle
        self.ordinal = ordinal  # 0 is the default stream; side streams count from 1
        self.site = site
        self.grouped = is_within("distributed")
        self.captured = False
        self.born = born
        self.count = 0
        self.caught: Clock = NOTHING
        self.caller: tuple[LogicalThread, int] | None = None
        self.past: list[tuple[tuple[LogicalThread, int], Snapshot]] = []
        self.waits: dict[LogicalThread, tuple[int, Site]] = {}

    def __str__(self) -> str:
        if self.ordinal == 0:
            return f"the default stream of cuda:{self.device}"
        return f"{'the captured ' if self.captured else ''}{self.in_capture}"

    @property
    def in_capture(self) -> str:
        """Return the stream's name in reports; for a stream that a graph owns, the name of the captured stream."""
        return f"{side_stream(self.ordinal, self.grouped)} of cuda:{self.device}"


NOBODY = LogicalThread(-1)
"""The owner of what belongs to no stream."""


Reached: TypeAlias = "tuple[Snapshot, Snapshot, bool]"
"""A position by the strict and by the loose order, and whether the waiting host is sure to reach it."""


def snapshot(agent: LogicalThread) -> Snapshot:
    return agent, agent.time, agent.clock
