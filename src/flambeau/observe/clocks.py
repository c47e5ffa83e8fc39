"""Agents and what they know of each other: vector clocks, whose ticks are numbers of driver calls.

# Note [Clocks]
A stream is an agent. Each command that it is given takes the next number of one counter for the whole
process, so a number names a command and says which of two was requested first. A clock maps agents to
numbers: `clock[a] >= n` says that command n of agent a, and all before it on a, are done before whatever
the clock belongs to. Two accesses are ordered if the later one's clock covers the earlier.

What the host does itself is done when its call returns, so every command that it gives later comes after it; all
that it needs is a clock of its own, which grows when it waits. A command starts with everything that the host knew
when it gave it. Where several host threads call, each has such a clock: see Note [Host threads].

An agent outlives its stream, for those that know or wait for it. Once the host knows all that the stream was
given, and the stream is gone, whatever comes later comes after it, just as if it were given to that stream:
so the next stream takes the agent over (`begin`), and clocks grow with the streams at one time, not with all.

Clocks are never changed, only replaced. A snapshot, for an event, is therefore three references, and
whether a stream has caught up with the host is one comparison of identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeAlias

from flambeau.core.callsite import Site, is_within

Clock: TypeAlias = "Mapping[LogicalThread, int]"
Snapshot: TypeAlias = "tuple[LogicalThread, int, Clock]"
"""The point that an agent's queue had reached: the agent, its last command, what it knew."""

NOTHING: Clock = {}


def side_stream(ordinal: int, grouped: bool) -> str:
    """What a stream beside the default one is called, wherever it is shown."""
    return f"{'group' if grouped else 'side'} stream {ordinal}"


class LogicalThread:
    """A stream as the detector sees it: its last command's number, what it knows of other streams.

    `caught` is the host's clock that it has taken over. `waits` keeps the latest wait for each other agent
    (number waited for, where), to explain a wait that came too early. `count` counts its commands, `born` is
    the number at which its present stream was made. `caller` is the host thread that used it last, with how often
    that had told others something by then; `shared`: several have used it; `loose`: what it knows by the loose order.
    `grouped`: its present stream is a process group's, which the program does not have. `captured`: it stands for a
    graph's own, which was captured of a stream of this ordinal.
    """

    __slots__ = (
        "born", "caller", "captured", "caught", "clock", "count", "device", "grouped", "handle", "loose", "ordinal",
        "shared", "site", "time", "waits",
    )  # fmt: skip

    def __init__(self, device: int) -> None:
        self.device = device
        self.time = 0
        self.clock: Clock = NOTHING
        self.loose: Clock = NOTHING

    def begin(self, handle: int, ordinal: int, site: Site | None, born: int) -> None:
        """Stand for a new stream."""
        self.handle = handle
        self.ordinal = ordinal  # 0 is the default stream; side streams count from 1
        self.site = site
        self.grouped = is_within("distributed")
        self.captured = False
        self.born = born
        self.count = 0
        self.caught: Clock = NOTHING
        self.caller: tuple[LogicalThread, int] | None = None
        self.shared = False
        self.waits: dict[LogicalThread, tuple[int, Site]] = {}

    def __str__(self) -> str:
        if self.ordinal == 0:
            return f"the default stream of cuda:{self.device}"
        return f"{'the captured ' if self.captured else ''}{self.in_capture}"

    @property
    def in_capture(self) -> str:
        """The side stream, or that which a graph's own was captured of."""
        return f"{side_stream(self.ordinal, self.grouped)} of cuda:{self.device}"


NOBODY = LogicalThread(-1)
"""Stands for the owner of what belongs to no stream."""


Reached: TypeAlias = "tuple[Snapshot, Snapshot, bool]"
"""A point by the strict and by the loose order, and whether the host that waits for it is sure to reach it."""


def snapshot(agent: LogicalThread) -> Snapshot:
    return agent, agent.time, agent.clock


def join_clock(clock: Clock, point: Snapshot) -> Clock:
    """Return the clock after it has received `point`; the same object if nothing changes."""
    agent, time, theirs = point
    if clock.get(agent, 0) >= time:
        return clock
    return merge_clocks(clock, {**theirs, agent: max(time, theirs.get(agent, 0))})


def without(clock: Clock, gone: Set[LogicalThread]) -> Clock:
    """The clock but for these agents; the same object if it names none of them."""
    if gone.isdisjoint(clock):
        return clock
    return {agent: time for agent, time in clock.items() if agent not in gone}


def merge_clocks(clock: Clock, other: Clock) -> Clock:
    """Return the smallest clock that covers both."""
    if not clock:
        return other
    result = dict(clock)
    for agent, time in other.items():
        if result.get(agent, 0) < time:
            result[agent] = time
    return result
