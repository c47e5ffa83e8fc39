"""Happens-before of a machine: its streams, its events, and the host's waits.

It owns all race clocks. See Note [Clocks] and Note [Host threads].
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from flambeau.core.callsite import Site, caller
from flambeau.core.host.turn_scheduler import seat
from flambeau.core.vector_clock import join_clock, merge_clocks
from flambeau.observe.clocks import (
    NOTHING,
    Clock,
    LogicalThread,
    Reached,
    Snapshot,
    snapshot,
)
from flambeau.observe.race_findings import Findings
from flambeau.observe.threads import Outer, Threads

Caller: TypeAlias = tuple[LogicalThread, int]
"""A host thread, and the number of messages that it had sent to others when it made a call."""

_PAST = 64  # earlier positions of a stream that are kept for host threads that know only these

Lane: TypeAlias = tuple[int, int, Site | None, bool]
"""A captured stream: device, ordinal, call site of its creation, and whether a process group owns it."""


class Order:
    """The order of one machine's commands. The drivers that feed it hold `lock`, so its order equals the
    queues' order.
    """

    __slots__ = (
        "__weakref__", "_at_start", "_draws", "_event_users", "_events", "_first", "_hosts", "_loose_events", "_made",
        "_next", "_on_device", "_own_events", "_recorders", "_retired", "_several_ranks", "agents", "concurrent",
        "everyone", "findings", "known", "lock", "number", "polled", "running", "several", "threads",
    )  # fmt: skip

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.lock = threading.RLock()
        self.known: Clock = {}  # the host's clock; with several threads, the clock of the last caller
        self.threads = Threads(self.thread_ends)
        self.running = 0  # the thread that called last
        self.several = False  # True once a second host thread has called; see Note [Host threads]
        self.everyone: Clock = NOTHING  # the clock of what any host thread has waited for
        self.polled: Clock = NOTHING  # what the runtime's own polls have shown to be complete
        self.concurrent = False  # True once several streams have commands
        self._first: LogicalThread | None = None
        self.number = 1  # number of the last command of any stream
        self._next = itertools.count(2).__next__  # atomic, because the start of a lifetime takes no lock
        self.agents: dict[int, LogicalThread] = {}
        self._on_device: dict[int, list[LogicalThread]] = {}
        self._retired: list[LogicalThread] = []
        self._made: dict[int, int] = {}  # device -> side streams created so far
        self._events: dict[int, Snapshot] = {}
        self._loose_events: dict[int, Snapshot] = {}
        # event -> its last and its first recorder, and the position that it records in every run, if there is one
        self._recorders: dict[int, tuple[Caller, Caller, Snapshot | None]] = {}
        self._own_events: set[int] = set()  # events that the runtime polls itself
        # event -> the threads that used it since its record, as `Caller`s
        self._event_users: dict[int, dict[LogicalThread, int]] = {}
        self._draws: dict[int, Caller] = {}  # device -> the caller that drew random numbers last
        # rank -> its host clock, for ranks that are threads and take turns
        self._hosts: dict[int, Clock] = {}
        self._at_start: Clock = NOTHING  # the host clock when the ranks began
        self._several_ranks = False

    @property
    def events(self) -> Mapping[int, Snapshot]:
        """Return the present record of each event, by the event's handle."""
        return self._events

    # -- streams ---------------------------------------------------------------------------------------
    def add_stream(self, device: int, handle: int, site: Site | None, default: bool = False) -> None:
        if handle not in self.agents:
            ordinal = self._made[device] = 0 if default else self._made.get(device, 0) + 1
            self._begin_stream(device, handle, ordinal, site)

    def add_lane(self, handle: int, lane: Lane) -> None:
        """Add a stream that a graph owns, at the graph's first launch."""
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
        """Return a logical thread for reuse: its stream was destroyed, and the host has waited for all of its
        commands.
        """
        for agent in self._retired:
            if agent.device == device and self.all_know(agent, agent.time):
                self._retired.remove(agent)
                return agent
        return None

    def remove_stream(self, handle: int) -> None:
        """Remove a handle. The logical thread stays while clocks and events refer to it."""
        agent = self.agents.pop(handle, None)
        if agent is not None:
            self._retired.append(agent)

    # -- edges -----------------------------------------------------------------------------------------
    def catch_up(self, agent: LogicalThread) -> None:
        """Join the host's clock to a stream's clock, because the host is about to enqueue a command there."""
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
        """Record an event. The stream's clock stays, because the record may be between commands of other threads."""
        agent = self.agents[stream]
        before, is_end = self._position(agent)
        clock = agent.clock
        if agent.caught is not self.known or not is_end:
            clock = merge_clocks(NOTHING if before is None else before[2], self.known)
        self.number = agent.time = number = self._next()
        self._events[event] = agent, number, clock
        users = self._event_users.get(event, {})
        if event not in self._own_events and not all(self._comes_after(user) for user in users.items()):
            self.findings.threads_unordered("an event is recorded again", caller(2))
        mine = self._caller()
        sure = None if before is None else (agent, number if is_end else before[1], clock)
        self._recorders[event] = mine, self._recorders[event][1] if event in self._recorders else mine, sure
        self._event_users[event] = dict([mine])
        if self.several:
            loose = merge_clocks(merge_clocks(agent.loose, self.everyone), clock)
            self._loose_events[event] = agent, number, loose

    def forget_event(self, event: int) -> None:
        for events in (self._events, self._loose_events, self._recorders, self._event_users):
            events.pop(event, None)
        self._own_events.discard(event)

    def wait(self, stream: int, event: int, site: Site) -> None:
        """Join the clock of the event's present record to the stream's clock."""
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
        """Return the position after which the stream's next command happens, including the host's clock."""
        agent = self.agents[stream]
        self.catch_up(agent)
        return snapshot(agent)

    def after(self, stream: int, point: Snapshot) -> None:
        """Order the stream's next commands after a position, although the program did not wait."""
        agent = self.agents.get(stream)
        if agent is not None:
            self.tick(agent)
            agent.clock = join_clock(agent.clock, point)
            agent.loose = merge_clocks(agent.loose, point[0].loose) if self.several else agent.loose

    def point_of(self, stream: int) -> Reached:
        """Return the position at the end of the stream's queue. Callers ask before a host wait, as others may enqueue
        during it.
        """
        return self._end_of(self.agents[stream])

    def points_of(self, device: int) -> list[Reached]:
        """Return the ends of the queues of all streams of a device."""
        return [self._end_of(agent) for agent in self._on_device.get(device, ())]

    def _end_of(self, agent: LogicalThread) -> Reached:
        point, _ = self._position(agent)
        return point or snapshot(agent), (agent, agent.time, agent.loose), point is not None

    def _position(self, agent: LogicalThread) -> tuple[Snapshot | None, bool]:
        """Return the last position of a stream that this thread happens after in every run, and whether that is the end
        of the queue.

        Another thread may have enqueued commands that nothing orders before this call.
        """
        if agent.caller is None or not self.several or self._comes_after(agent.caller):
            return snapshot(agent), True
        return next((point for user, point in reversed(agent.past) if self._comes_after(user)), None), False

    def event_point(self, event: int, own: bool = False) -> Reached | None:
        """Return the position that an event records, for a wait. With `own`, the runtime waits for its own purposes."""
        if own:
            self._own_events.add(event)
        point = self._events.get(event)
        if point is None:
            return None
        mine, published = self._caller()
        last, first, sure = self._recorders[event]
        is_after = self._comes_after(last)
        if is_after:
            self._event_users[event][mine] = published
        elif not own and self._comes_after(first):  # the wait may be for an earlier record in another run
            self.findings.threads_unordered("an event is recorded again, and waited for", caller(2))
        if not self.several or own:
            return point, point, True
        return sure or point, self._loose_events.get(event, point), is_after and sure is not None

    def is_over(self, event: int) -> bool:
        """Return True if the host has waited for an event's record, which is then complete in every run."""
        reached = self.event_point(event)
        return reached is None or (reached[2] and self.known.get(reached[0][0], 0) >= reached[0][1])

    def host_waited(self, points: Sequence[Reached | None]) -> None:
        """Add these positions to the host's clock, because the host has waited for them."""
        for reached in points:
            if reached is not None:
                point, loose, sure = reached
                if sure:
                    self.known = join_clock(self.known, point)
                if self.several:
                    self.everyone = join_clock(self.everyone, loose)

    def runtime_polled(self, reached: Reached | None, done: bool) -> None:
        """Record a poll or wait of the runtime. See Note [What orders reuse]."""
        if reached is None:
            return
        point = reached[0]
        if done and (self.several or self.known.get(point[0], 0) < point[1]):
            self.polled = join_clock(self.polled, point)

    # -- host threads: see Note [Host threads] ------------------------------------------------------------
    def enter(self) -> None:
        """Switch to another host thread, which now calls the driver."""
        self.findings.raise_due()
        self.running = threading.get_ident()
        if seat() is not None:  # a rank that takes turns; `switch_host` handles these
            self.threads.act()
            return
        before = self.known
        self.known = self.threads.enter(before)
        if self.threads.logical > 1:
            self._begin_several(before)

    def expect_thread(self, word: object, point: Snapshot) -> None:
        """Note that a thread will begin at a position, which `word` carries to it.

        From now on there are several threads. The thread's first call is too late for that, because it depends on
        the host's scheduler what the other threads have done by then.
        """
        with self.lock:
            self.threads.expect(word, point)
            self._begin_several(self.known)

    def thread_begins(self, word: object) -> None:
        with self.lock:
            self.threads.begins(word)

    def _begin_several(self, known: Clock) -> None:
        if not self.several:
            self.several = self.concurrent = True
            self.everyone = known
            for agent in itertools.chain.from_iterable(self._on_device.values()):
                agent.loose = agent.clock
            self._loose_events = dict(self._events)

    def publish(self) -> Snapshot:
        """Return this thread's position, which a message to another thread carries."""
        with self.lock:
            point, self.known = self.threads.publish(self.known)
            return point

    def receive(self, point: Snapshot) -> None:
        """Join the position that a message from another thread carries."""
        with self.lock:
            self.known = self.threads.receive(point, self.known)

    def knows(self, other: Caller) -> bool:
        """Return True if this thread happens after a call of another one."""
        with self.lock:
            known = self.threads.clock_of(threading.get_ident(), self.known)
            return other[0] is self.threads.agent() or known.get(other[0], 0) >= other[1]

    def here(self) -> Caller:
        """Return this thread, and the number of messages that it has sent."""
        with self.lock:
            mine = self.threads.agent()
            return mine, mine.time

    def begin_task(self, point: Snapshot | None) -> Outer:
        """Begin a task of a thread pool, which happens after `point` but not after the thread's earlier tasks."""
        with self.lock:
            outer = self.threads.begin_task(point, self.known)
            self.running = 0  # so that this thread's next call is handled as one of another thread
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
        """Record that a launch draws random numbers of a device (-1: the CPU)."""
        last = self._draws.get(device)
        if last is not None and not self._comes_after(last):
            name = "the CPU" if device < 0 else f"cuda:{device}"
            self.findings.threads_unordered(f"random numbers of {name} are drawn", caller(2))
        self._draws[device] = self._caller()

    def _caller(self) -> Caller:
        mine = self.threads.mine
        return mine, mine.time

    def _comes_after(self, other: Caller) -> bool:
        """Return True if this thread's calls happen after a call of another thread in every run."""
        return other[0] is self.threads.mine or self.known.get(other[0], 0) >= other[1]

    def _used_by_this_thread(self, agent: LogicalThread) -> None:
        last, agent.caller = agent.caller, self._caller()
        if last is None or last == agent.caller:
            return
        if self.several:
            self._keep_position(agent, last)
        if not self._comes_after(last):
            self.findings.threads_unordered(f"{agent} is given work", caller(2))

    def _keep_position(self, agent: LogicalThread, user: Caller) -> None:
        """Keep a stream's position after the commands of a host thread's call, for threads that know only these."""
        past = agent.past
        if len(past) >= _PAST:
            known = [at for at, (old, _) in enumerate(past) if self.all_come_after(old)]
            del past[: max(known, default=_PAST // 2)]
        past.append((user, snapshot(agent)))

    def all_come_after(self, other: Caller) -> bool:
        """Return True if every host thread's next call happens after a call."""
        with self.lock:
            mine, time = other
            clocks = [(self.threads.mine, self.known), *self.threads.others()]
            return all(thread is mine or known.get(mine, 0) >= time for thread, known in clocks)

    def all_know(self, agent: LogicalThread, time: int) -> bool:
        """Return True if every host thread has waited for a command."""
        if self.known.get(agent, 0) < time:
            return False
        return not self.several or all(known.get(agent, 0) >= time for _, known in self.threads.others())

    def switch_host(self, before: int, after: int) -> None:
        """Switch to another rank, which has its own host clock."""
        if not self._hosts:
            self._at_start = self.known
        self._several_ranks = True
        self._hosts[before] = self.known
        self.known = self._hosts.get(after, self._at_start)

    def join_hosts(self) -> None:
        """Continue with the clock of the host thread that started the ranks, after all ranks have ended."""
        for known in self._hosts.values():
            self.known = merge_clocks(self.known, known)
        self._hosts = {}
