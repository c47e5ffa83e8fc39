"""`Order`: the order of a machine's commands: its streams, its events, what the host has waited for.

Owner of all race clocks. See Note [Clocks] and Note [Host threads].
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TypeAlias

from flambeau.core.callsite import Site, caller
from flambeau.core.host.turn_scheduler import seat
from flambeau.observe.clocks import (
    NOTHING,
    Clock,
    LogicalThread,
    Reached,
    Snapshot,
    join_clock,
    merge_clocks,
    snapshot,
)
from flambeau.observe.findings import Findings
from flambeau.observe.threads import Outer, Threads

Caller: TypeAlias = tuple[LogicalThread, int]
"""A host thread, and how often it had told others something when it made a call."""

Lane: TypeAlias = tuple[int, int, Site | None, bool]
"""Of a stream that was captured: device, ordinal, where it was made, whether it is a process group's."""


class Order:
    """Of one machine. Not locked: the drivers that feed it hold `lock`, so that its order is the queues' order."""

    __slots__ = (
        "__weakref__", "_at_start", "_draws", "_event_users", "_events", "_first", "_hosts", "_loose_events", "_made",
        "_next", "_on_device", "_own_events", "_recorders", "_retired", "_several_ranks", "agents", "concurrent",
        "everyone", "findings", "known", "lock", "number", "polled", "running", "several", "threads",
    )  # fmt: skip

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.lock = threading.RLock()
        self.known: Clock = {}  # the host's; of several threads, that of the one that called last
        self.threads = Threads(self.thread_ends)
        self.running = 0  # the thread that called last
        self.several = False  # see Note [Host threads]
        self.everyone: Clock = NOTHING  # what any of them has waited for
        self.polled: Clock = NOTHING  # what the runtime has found done on its own account
        self.concurrent = False  # whether several streams have been given commands
        self._first: LogicalThread | None = None
        self.number = 1  # of the last command
        self._next = itertools.count(2).__next__  # atomic, as what begins a life takes no lock
        self.agents: dict[int, LogicalThread] = {}
        self._on_device: dict[int, list[LogicalThread]] = {}
        self._retired: list[LogicalThread] = []
        self._made: dict[int, int] = {}  # side streams of a device so far
        self._events: dict[int, Snapshot] = {}
        self._loose_events: dict[int, Snapshot] = {}
        self._recorders: dict[
            int, tuple[LogicalThread, int, bool]
        ] = {}  # a `Caller`, and whether all is in order
        self._own_events: set[int] = set()  # of the runtime, which asks for them on its own account
        self._event_users: dict[
            int, dict[LogicalThread, int]
        ] = {}  # since it was recorded: threads, as in `Caller`
        self._draws: dict[int, Caller] = {}  # by device: who drew random numbers last
        self._hosts: dict[int, Clock] = {}  # of ranks that are threads and take turns: what each knows
        self._at_start: Clock = NOTHING  # what they all knew
        self._several_ranks = False

    # -- streams ---------------------------------------------------------------------------------------
    def add_stream(self, device: int, handle: int, site: Site | None, default: bool = False) -> None:
        if handle not in self.agents:
            ordinal = self._made[device] = 0 if default else self._made.get(device, 0) + 1
            self._begin_stream(device, handle, ordinal, site)

    def add_lane(self, handle: int, lane: Lane) -> None:
        """A stream of a graph's own, at its first launch."""
        device, ordinal, site, grouped = lane
        agent = self._begin_stream(device, handle, ordinal, site)
        agent.grouped, agent.captured = grouped, True

    def _begin_stream(self, device: int, handle: int, ordinal: int, site: Site | None) -> LogicalThread:
        agent = self.agents[handle] = self._idle(device) or self._new_agent(device)
        agent.begin(handle, ordinal, site, self._next())
        return agent

    def _new_agent(self, device: int) -> LogicalThread:
        agent = LogicalThread(device)
        self._on_device.setdefault(device, []).append(agent)
        return agent

    def _idle(self, device: int) -> LogicalThread | None:
        """An agent whose stream is gone and whose commands the host knows to be done."""
        for agent in self._retired:
            if agent.device == device and self.all_know(agent, agent.time):
                self._retired.remove(agent)
                return agent
        return None

    def remove_stream(self, handle: int) -> None:
        """The handle is gone; the agent stays for those that still know or wait for it."""
        agent = self.agents.pop(handle, None)
        if agent is not None:
            self._retired.append(agent)

    # -- edges -----------------------------------------------------------------------------------------
    def catch_up(self, agent: LogicalThread) -> None:
        """A command starts with all that the host knows when it gives it."""
        if agent.caught is not self.known:
            if agent is not self._first and not self.concurrent:
                self.concurrent = self._first is not None
                self._first = agent
            self._used_by_this_thread(agent)
            agent.caught = self.known
            agent.clock = merge_clocks(agent.clock, self.known)

    def tick(self, agent: LogicalThread) -> None:
        self.catch_up(agent)
        self.number = agent.time = self._next()
        if self.several:
            agent.loose = merge_clocks(merge_clocks(agent.loose, self.everyone), agent.clock)

    def record(self, event: int, stream: int) -> None:
        agent = self.agents[stream]
        last = agent.caller
        if last is None or last[0] is self.threads.mine:
            self.tick(agent)
            sure = True
        else:  # it marks a point between another thread's commands, and adds nothing to them
            sure = self._comes_after(last)
        self._events[event] = snapshot(agent)
        users = self._event_users.get(event, {})
        if event not in self._own_events and not all(self._comes_after(user) for user in users.items()):
            self.findings.threads_unordered("an event is recorded anew", caller(2))
        mine, published = self._caller()
        self._recorders[event] = mine, published, sure
        self._event_users[event] = {mine: published}
        if self.several:
            self._loose_events[event] = agent, agent.time, agent.loose

    def forget_event(self, event: int) -> None:
        for events in (self._events, self._loose_events, self._recorders, self._event_users):
            events.pop(event, None)
        self._own_events.discard(event)

    def wait(self, stream: int, event: int, site: Site) -> None:
        """The stream takes over the event's snapshot, as it is now."""
        reached = self.event_point(event)
        agent = self.agents[stream]
        self.tick(agent)
        if reached is None:
            return
        point, loose, sure = reached
        if sure:
            agent.clock = join_clock(agent.clock, point)
        if self.several:
            agent.loose = join_clock(agent.loose, loose)
        agent.waits[point[0]] = (point[1], site)

    def before(self, stream: int) -> Snapshot:
        """What the stream has reached, with all that the host knows: what its next command comes after."""
        agent = self.agents[stream]
        self.catch_up(agent)
        return snapshot(agent)

    def after(self, stream: int, point: Snapshot) -> None:
        """What the stream is given from now on comes after a point, by no wait of the program's."""
        agent = self.agents.get(stream)
        if agent is not None:
            self.tick(agent)
            agent.clock = join_clock(agent.clock, point)
            agent.loose = merge_clocks(agent.loose, point[0].loose) if self.several else agent.loose

    def point_of(self, stream: int) -> Reached:
        """Where the stream's queue ends now. Taken before a wait on the host: others may queue meanwhile."""
        return self._end_of(self.agents[stream])

    def points_of(self, device: int) -> list[Reached]:
        """The same of all streams of a device."""
        return [self._end_of(agent) for agent in self._on_device.get(device, ())]

    def _end_of(self, agent: LogicalThread) -> Reached:
        sure = agent.caller is None or not self.several or self._comes_after(agent.caller)
        return snapshot(agent), (agent, agent.time, agent.loose), sure

    def event_point(self, event: int, own: bool = False) -> Reached | None:
        """What an event marks, for somebody who waits for it; `own`: the runtime does, on its own account."""
        if own:
            self._own_events.add(event)
        point = self._events.get(event)
        if point is None:
            return None
        mine, published = self._caller()
        self._event_users[event][mine] = published
        if not self.several:
            return point, point, True
        recorder, then, sure = self._recorders[event]
        return point, self._loose_events.get(event, point), sure and self._comes_after((recorder, then))

    def is_over(self, event: int) -> bool:
        """Whether the host has waited for what an event marks: it is done in every run."""
        reached = self.event_point(event)
        return reached is None or (reached[2] and self.known.get(reached[0][0], 0) >= reached[0][1])

    def host_waited(self, points: Sequence[Reached | None]) -> None:
        """The host has waited for these points: it knows them."""
        for reached in points:
            if reached is not None:
                point, loose, sure = reached
                if sure:
                    self.known = join_clock(self.known, point)
                if self.several:
                    self.everyone = join_clock(self.everyone, loose)

    def runtime_polled(self, reached: Reached | None, done: bool) -> None:
        """The runtime asked whether this point is done, or waited for it. See Note [What orders reuse]."""
        if reached is None:
            return
        point = reached[0]
        if done and (self.several or self.known.get(point[0], 0) < point[1]):
            self.polled = join_clock(self.polled, point)

    # -- host threads: see Note [Host threads] ------------------------------------------------------------
    def enter(self) -> None:
        """Another thread than the one before calls the driver."""
        self.findings.raise_due()
        self.running = threading.get_ident()
        if seat() is not None:  # a rank that takes turns: see `switch_host`
            return
        before = self.known
        self.known = self.threads.enter(before)
        if self.threads.logical > 1 and not self.several:
            self.several = True
            self.everyone = before
            for agent in itertools.chain.from_iterable(self._on_device.values()):
                agent.loose = agent.clock
            self._loose_events = dict(self._events)

    def publish(self) -> Snapshot:
        """What this thread can tell another one now."""
        with self.lock:
            point, self.known = self.threads.publish(self.known)
            return point

    def receive(self, point: Snapshot) -> None:
        """Another thread has told this one."""
        with self.lock:
            self.known = self.threads.receive(point, self.known)

    def knows(self, other: Caller) -> bool:
        """Whether this thread comes after what another did when it had told others that often."""
        with self.lock:
            known = self.threads.clock_of(threading.get_ident(), self.known)
            return other[0] is self.threads.agent() or known.get(other[0], 0) >= other[1]

    def here(self) -> Caller:
        """Return this thread, and how often it has told others something."""
        with self.lock:
            mine = self.threads.agent()
            return mine, mine.time

    def begin_task(self, point: Snapshot | None) -> Outer:
        """A thread of a pool begins a task, which knows what `point` tells and nothing that the thread did before."""
        with self.lock:
            outer = self.threads.begin_task(point, self.known)
            self.running = 0  # its next call comes as that of another thread
            return outer

    def end_task(self, outer: Outer) -> None:
        with self.lock:
            self.threads.end_task(outer, self.known)
            self.running = 0

    def thread_ends(self) -> None:
        with self.lock:
            self.threads.end()
            self.running = 0

    def drew(self, device: int) -> None:
        """A launch draws random numbers of a device (-1: the CPU)."""
        last = self._draws.get(device)
        if last is not None and not self._comes_after(last):
            name = "the CPU" if device < 0 else f"cuda:{device}"
            self.findings.threads_unordered(f"random numbers of {name} are drawn", caller(2))
        self._draws[device] = self._caller()

    def _caller(self) -> Caller:
        mine = self.threads.mine
        return mine, mine.time

    def _comes_after(self, other: Caller) -> bool:
        """Whether this thread's calls come after one of another's in every run."""
        return other[0] is self.threads.mine or self.known.get(other[0], 0) >= other[1]

    def _used_by_this_thread(self, agent: LogicalThread) -> None:
        last = agent.caller
        agent.caller = self._caller()
        if last is not None and last[0] is not self.threads.mine:
            agent.shared = True
            if not self._comes_after(last):
                self.findings.threads_unordered(f"{agent} is given work", caller(2))

    def all_know(self, agent: LogicalThread, time: int) -> bool:
        """Whether every thread knows a command of an agent to be done."""
        if self.known.get(agent, 0) < time:
            return False
        return not self.several or all(known.get(agent, 0) >= time for known in self.threads.others())

    def switch_host(self, before: int, after: int) -> None:
        """Another rank runs from now on: each has a host, which knows what that rank has waited for."""
        if not self._hosts:
            self._at_start = self.known
        self._several_ranks = True
        self._hosts[before] = self.known
        self.known = self._hosts.get(after, self._at_start)

    def join_hosts(self) -> None:
        """The ranks have ended: whoever started them knows what all of them knew."""
        for known in self._hosts.values():
            self.known = merge_clocks(self.known, known)
        self._hosts = {}
