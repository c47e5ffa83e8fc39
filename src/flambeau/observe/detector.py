"""`Detector`: finds accesses to one piece of memory that conflict and that nothing orders.

Owner of all race clocks. See Note [Clocks] and Note [Cells]; what the answer means is in docs/determinism.md.

# Note [Reuse]
A block that is handed out again begins another life. If a stream used it in its last life, and neither the
new owner's stream nor the host waited for that stream, the two lives race: `record_stream` is missing. The
runtime polls events to see whether a block can be reused (`internal`). Its success orders the lives of that
block and nothing else: under another schedule the poll fails and the tensor lies elsewhere, so the program
itself must not draw any order from it. `Cell.polled` is what such polls knew of it when a life ended.

From the first poll whose answer the host's own waits do not decide (`in_doubt`), which memory is handed out
depends on the schedule. So it is not enough then that this run reused no block too early: whenever memory is
handed out on a stream, no freed block of that stream may be in such use (`_loose`), or the certificate is
withheld. Nor does the program get any order from what the runtime waits for on its own account, as it gives
memory back: whether it has to depends on the schedule, and on what other code left in the cache.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from flambeau.core.baton import seat
from flambeau.core.errors import RaceError
from flambeau.core.sites import Site, caller, line_of, place
from flambeau.driver.meetings import KINDS as COLLECTIVES
from flambeau.observe.accesses import (
    MANY,
    NOWHERE,
    Block,
    Cell,
    Command,
    Footprint,
    Operation,
    Shadow,
    clear_covered,
)
from flambeau.observe.clocks import (
    NOBODY,
    NOTHING,
    Agent,
    Clock,
    Reached,
    Snapshot,
    joined,
    merged,
    snapshot,
    without,
)
from flambeau.observe.layouts import Extent, drawn, extent_of, overlap, span_of
from flambeau.observe.reports import Access, Certificate, Mend, Race, RaceWarning
from flambeau.observe.threads import Threads

Caller: TypeAlias = tuple[Agent, int]
"""A host thread, and how often it had told others something when it made a call."""

_READ, _WRITE = "reads", "writes"
_MANY_RETIRED = 64


class Detector:
    """Watches one machine. `mode` is "warn" (collect) or "error" (RaceError at the second access).

    Not locked: the drivers that feed it hold `lock`, so that its order of commands is the queues' order.
    """

    def __init__(self, mode: str = "warn") -> None:
        if mode not in ("warn", "error"):
            raise ValueError(f"races must be 'warn' or 'error' here, not {mode!r}")
        self.mode = mode
        self.lock = threading.RLock()
        self.shadow = Shadow()
        self.known: Clock = {}  # the host's; of several threads, that of the one that called last
        self.threads = Threads()
        self.running = 0  # the thread that called last
        self.several = False  # see Note [Host threads]
        self.everyone: Clock = NOTHING  # what any of them has waited for
        self.polled: Clock = NOTHING  # what the runtime has found done on its own account
        self.in_doubt = False  # see Note [Reuse]
        self.number = 1  # of the last command
        self._next = itertools.count(2).__next__  # atomic, as what begins a life takes no lock
        self.agents: dict[int, Agent] = {}
        self._on_device: dict[int, list[Agent]] = {}
        self._retired: list[Agent] = []
        self._many_retired = _MANY_RETIRED
        self._made: dict[int, int] = {}  # side streams of a device so far
        self._events: dict[int, Snapshot] = {}
        self._loose_events: dict[int, Snapshot] = {}
        self._recorders: dict[
            int, tuple[Agent, int, bool]
        ] = {}  # as in `Caller`, and whether all is in order
        self._own_events: set[int] = set()  # of the runtime, which asks for them on its own account
        self._event_users: dict[int, dict[Agent, int]] = {}  # since it was recorded: threads, as in `Caller`
        self._pending_host: dict[Cell, None] = {}
        self._races: dict[tuple[object, ...], Race] = {}
        self._freed: list[Block] = []  # not looked at yet
        self._loose: dict[
            Agent, dict[Agent, tuple[Command, Block]]
        ] = {}  # owner: user: its last use, of which block
        self._early: dict[str, str] = {}
        self._unwritten: dict[str, str] = {}
        self._queries: dict[str, str] = {}
        self._times: dict[str, None] = {}
        self._shared: dict[str, None] = {}  # where memory was shared with other processes
        self._draws: dict[int, Caller] = {}  # by device: who drew random numbers last
        self._unordered: dict[str, None] = {}  # calls of threads that may come in another order
        self._polls: dict[str, None] = {}  # what threads asked each other
        self._hosts: dict[int, Clock] = {}  # of ranks that are threads and take turns: what each knows
        self._at_start: Clock = NOTHING  # what they all knew
        self._several_ranks = False
        self._reuses_polled = 0
        self._told = False

    # -- answers --------------------------------------------------------------------------------------
    @property
    def races(self) -> list[Race]:
        """The races found, one for each pair of lines, in the order of their discovery."""
        return list(self._races.values())

    def certificate(self) -> Certificate:
        """What this run proves. Asking for it counts as having been told of the races."""
        self._told = True
        assumptions = ["every operator computes the same result from the same input each time"]
        violated: list[str] = []
        if self.several:
            violated += self._unordered
            violated += self._polls
            assumptions.append(
                f"{self.threads.count} host threads made driver calls, wherever it matters in an order that "
                "Thread.start and join, Event and queue.Queue give (checked); they share no Python objects and no "
                "CPU tensors without these"
            )
        elif not self._several_ranks:
            assumptions.append("one host thread made all driver calls (checked)")
        if self._several_ranks:
            assumptions.append(
                "ranks meet in collectives and in the store alone, and what they do does not depend on who comes first"
            )
        if self._shared:
            violated.append(
                f"memory is shared with other processes at {_some(self._shared)}: what they do with it is not visible"
            )
        violated += self._queries.values()
        if not self._queries:
            assumptions.append("the program never asked query(), so it cannot branch on timing (checked)")
        if self._times:
            assumptions.append(f"times read at {_some(self._times)} are only reported, they steer nothing")
        violated += self._early.values()
        violated += self._unwritten.values()
        if not self._unwritten and not self._shared:
            assumptions.append("no operation read memory that was never written (checked)")
        if self._reuses_polled:
            assumptions.append(
                f"{self._reuses_polled} reuses of memory followed the runtime's own polling: other schedules "
                "may change addresses, statistics and out-of-memory errors, not values"
            )
        return Certificate(assumptions, violated, self.races)

    def warn(self) -> None:
        """Give a RaceWarning for each race that nobody was told of."""
        if not self._told:
            self._told = True
            for race in self._races.values():
                code, line = race.second.site[0], line_of(race.second.site)
                warnings.warn_explicit(RaceWarning(str(race)), RaceWarning, code.co_filename, line)

    # -- agents and edges ------------------------------------------------------------------------------
    def add_stream(self, device: int, handle: int, site: Site | None, default: bool = False) -> None:
        if handle not in self.agents:
            ordinal = self._made[device] = 0 if default else self._made.get(device, 0) + 1
            agent = self.agents[handle] = self._idle(device) or self._new_agent(device)
            agent.begin(handle, ordinal, site, self._next())

    def _new_agent(self, device: int) -> Agent:
        agent = Agent(device)
        self._on_device.setdefault(device, []).append(agent)
        return agent

    def _idle(self, device: int) -> Agent | None:
        """An agent whose stream is gone and whose commands the host knows to be done."""
        for agent in self._retired:
            if agent.device == device and self._all_know(agent, agent.time):
                self._retired.remove(agent)
                self._loose.pop(agent, None)
                return agent
        return None

    def remove_stream(self, handle: int) -> None:
        """The handle is gone; the agent stays for those that still know or wait for it."""
        agent = self.agents.pop(handle, None)
        if agent is not None:
            self._retired.append(agent)
            if len(self._retired) >= self._many_retired:
                self._drop_retired()

    def _drop_retired(self) -> None:
        """A program may never wait on the host: forget the agents whose commands no memory and no event remembers."""
        used = {access[0] for cell in self.shadow.cells.values() for access in cell.accesses()}
        used |= {point[0] for point in self._events.values()}
        used |= {user for users in self._loose.values() for user in users}
        gone = set(self._retired) - used
        self._retired = [agent for agent in self._retired if agent in used]
        self._many_retired = _MANY_RETIRED + 2 * len(self._retired)
        for agents in self._on_device.values():
            agents[:] = [agent for agent in agents if agent not in gone]
        for agent in gone:
            self._loose.pop(agent, None)
        self.known, self.polled = without(self.known, gone), without(self.polled, gone)
        for agent in itertools.chain.from_iterable(self._on_device.values()):
            agent.clock = without(agent.clock, gone)
            agent.waits = {other: wait for other, wait in agent.waits.items() if other not in gone}
        self._events = {event: (a, n, without(clock, gone)) for event, (a, n, clock) in self._events.items()}
        for cell in self.shadow.cells.values():
            cell.polled = without(cell.polled, gone)

    def catch_up(self, agent: Agent) -> None:
        """A command starts with all that the host knows when it gives it."""
        if agent.caught is not self.known:
            self._used_by_this_thread(agent)
            agent.caught = self.known
            agent.clock = merged(agent.clock, self.known)

    def tick(self, agent: Agent) -> None:
        self.catch_up(agent)
        self.number = agent.time = self._next()
        if self.several:
            agent.loose = merged(merged(agent.loose, self.everyone), agent.clock)

    def record(self, event: int, stream: int) -> None:
        agent = self.agents[stream]
        sure = agent.caller is None or not self.several or self._comes_after(agent.caller)
        if sure:  # else it marks some point between another thread's commands, and adds nothing to them
            self.tick(agent)
        self._events[event] = snapshot(agent)
        users = self._event_users.get(event, {})
        if event not in self._own_events and not all(self._comes_after(user) for user in users.items()):
            self.threads_unordered("an event is recorded anew", caller(2))
        mine, told = self._caller()
        self._recorders[event] = mine, told, sure
        self._event_users[event] = {mine: told}
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
            agent.clock = joined(agent.clock, point)
        if self.several:
            agent.loose = joined(agent.loose, loose)
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
            agent.clock = joined(agent.clock, point)
            agent.loose = merged(agent.loose, point[0].loose) if self.several else agent.loose

    def point_of(self, stream: int) -> Reached:
        """Where the stream's queue ends now. Taken before a wait on the host: others may queue meanwhile."""
        return self._end_of(self.agents[stream])

    def points_of(self, device: int) -> list[Reached]:
        """The same of all streams of a device."""
        return [self._end_of(agent) for agent in self._on_device.get(device, ())]

    def _end_of(self, agent: Agent) -> Reached:
        sure = agent.caller is None or not self.several or self._comes_after(agent.caller)
        return snapshot(agent), (agent, agent.time, agent.loose), sure

    def event_point(self, event: int, own: bool = False) -> Reached | None:
        """What an event marks, for somebody who waits for it; `own`: the runtime does, on its own account."""
        if own:
            self._own_events.add(event)
        point = self._events.get(event)
        if point is None:
            return None
        mine, told = self._caller()
        self._event_users[event][mine] = told
        if not self.several:
            return point, point, True
        recorder, then, sure = self._recorders[event]
        return point, self._loose_events.get(event, point), sure and self._comes_after((recorder, then))

    def host_waited(self, points: Sequence[Reached | None]) -> None:
        """The host has waited for these points: it knows them."""
        before = self.known
        for reached in points:
            if reached is not None:
                point, loose, sure = reached
                if sure:
                    self.known = joined(self.known, point)
                if self.several:
                    self.everyone = joined(self.everyone, loose)
        if self.known is not before and self._pending_host:
            self._settle_host_memory()

    def runtime_polled(self, reached: Reached | None, done: bool) -> None:
        """The runtime asked whether this point is done, or waited for it. See Note [Reuse]."""
        if reached is None:
            return
        point = reached[0]
        if self.several or self.known.get(point[0], 0) < point[1]:
            self.in_doubt = True
            if done:
                self.polled = joined(self.polled, point)

    # -- host threads: see Note [Host threads] -----------------------------------------------------------
    def enter(self) -> None:
        """Another thread than the one before calls the driver."""
        self.running = threading.get_ident()
        if seat() is not None:  # a rank that takes turns: see `switch_host`
            return
        before = self.known
        self.known = self.threads.enter(before)
        if self.threads.count > 1 and not self.several:
            self.several = self.in_doubt = True
            self.everyone = before
            for agent in itertools.chain.from_iterable(self._on_device.values()):
                agent.loose = agent.clock
            self._loose_events = dict(self._events)

    def tell(self) -> Snapshot:
        """What this thread can tell another one now."""
        with self.lock:
            point, self.known = self.threads.tell(self.known)
            return point

    def hear(self, point: Snapshot) -> None:
        """Another thread has told this one."""
        with self.lock:
            self.known = self.threads.hear(point, self.known)

    def knows(self, other: Caller) -> bool:
        """Whether this thread comes after what another did when it had told others that often."""
        with self.lock:
            known = self.threads.known(threading.get_ident(), self.known)
            return other[0] is self.threads.agent() or known.get(other[0], 0) >= other[1]

    def stepped(self, last: Caller | None, what: str) -> Caller:
        """This thread uses an object that threads share, after the thread that did last, or in no order with it."""
        with self.lock:
            mine = self.threads.agent()
            known = self.threads.known(threading.get_ident(), self.known)
            if last is not None and last[0] is not mine and known.get(last[0], 0) < last[1]:
                self.threads_unordered(what, caller(2))
            return mine, mine.time

    def thread_ends(self) -> None:
        with self.lock:
            self.threads.end()
            self.running = 0

    def thread_asked(self, what: str, site: Site) -> None:
        """A thread asked another one something whose answer depends on timing."""
        self._polls[f"the program calls {what} at {place(site)}: what comes of it depends on timing"] = None

    def threads_unordered(self, what: str, site: Site) -> None:
        """Two threads did something in an order that another run may turn round."""
        self._unordered[f"{what} at {place(site)}, and nothing orders the host threads that do so"] = None

    def drew(self, device: int) -> None:
        """A launch draws random numbers of a device (-1: the CPU)."""
        last = self._draws.get(device)
        if last is not None and not self._comes_after(last):
            name = "the CPU" if device < 0 else f"cuda:{device}"
            self.threads_unordered(f"random numbers of {name} are drawn", caller(2))
        self._draws[device] = self._caller()

    def _caller(self) -> Caller:
        mine = self.threads.mine
        return mine, mine.time

    def _comes_after(self, other: Caller) -> bool:
        """Whether this thread's calls come after one of another's in every run."""
        return other[0] is self.threads.mine or self.known.get(other[0], 0) >= other[1]

    def _used_by_this_thread(self, agent: Agent) -> None:
        last = agent.caller
        agent.caller = self._caller()
        if last is not None and last[0] is not self.threads.mine:
            agent.shared = True
            if not self._comes_after(last):
                self.threads_unordered(f"{agent} is given work", caller(2))

    def _all_know(self, agent: Agent, time: int) -> bool:
        """Whether every thread knows a command of an agent to be done."""
        if self.known.get(agent, 0) < time:
            return False
        return not self.several or all(known.get(agent, 0) >= time for known in self.threads.others())

    def asked(self, what: str) -> None:
        """The program asked whether work is done: its answers may steer what it does."""
        at = place(caller(2))
        text = f"the program asked {what} at {at}: its answer depends on timing and may steer the program"
        self._queries.setdefault(at, text)

    def shared_memory(self, site: Site) -> None:
        """Other processes have memory of this one's, or this one has theirs: either may be written unseen."""
        self._shared[place(site)] = None

    def read_time(self) -> None:
        self._times[place(caller(2))] = None

    # -- memory ----------------------------------------------------------------------------------------
    def begin_life(self, ptr: int, nbytes: int, stream: int) -> None:
        """A piece of memory is handed out, to a stream (0: host memory). Takes the lock if it needs to."""
        block = self.shadow.blocks.get(ptr)
        if (
            block is None
            or block.end - ptr != nbytes
            or len(block.cells) > MANY
            or self._freed
            or self._loose
        ):
            with self.lock:
                if threading.get_ident() != self.running:
                    self.enter()
                self.own(ptr, nbytes, stream, caller(1))
            return
        block.last = (block.site, block.freed, block.freed_at)
        block.agent = self.agents.get(stream)
        block.born = self._next()
        block.site = caller(3)
        block.freed = 0

    def own(self, ptr: int, nbytes: int, stream: int | None, site: Site, host: bool = False) -> None:
        """A piece of memory begins a life with a new owner; its first life if that is no stream."""
        agent = None if stream is None else self.agents.get(stream)
        if agent is not None:
            self._check_loose(agent)
        block = self.shadow.own(ptr, nbytes, agent, self._next(), site)
        block.host = block.host or host

    def end_life(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        """A life ends; the runtime has seen these events of its uses done. Takes no lock: a destructor calls."""
        block = self.shadow.blocks.get(ptr)
        if block is None:
            return
        block.freed = self.number
        owner = block.agent or NOBODY
        for cell in block.cells:
            if cell.sole is not owner:
                break
        else:  # nobody else has used it: what its stream does next comes after all of that
            block.freed_at = None
            return
        block.freed_at = caller(1)
        if after:
            points = [point for event in after if (point := self._events.get(event)) is not None]
            seen = [
                point for point in points if self.polled.get(point[0], 0) >= point[1]
            ]  # as it ought to be
            for cell in block.cells:
                for point in seen:
                    cell.polled = joined(cell.polled, point)
        if block.agent is not None:
            if self.several or threading.get_ident() != self.running:
                with self.lock:
                    self._look_at_freed_by_thread(block, block.agent)
            self._freed.append(block)  # last: whoever has the lock may look at it from now on

    def _check_loose(self, owner: Agent) -> None:
        """Memory is handed out on a stream: which freed blocks of it may other streams still use?"""
        while self._freed:
            self._look_at_freed(self._freed.pop())
        loose = self._loose.get(owner)
        if not loose:
            return
        self.catch_up(owner)
        for user, (last, block) in list(loose.items()):
            if owner.clock.get(user, 0) >= last[1]:
                del loose[user]
            elif self.in_doubt:
                self._report_early(last, block)

    def _look_at_freed(self, block: Block) -> None:
        """Note the last use of each stream that neither the owner's stream nor the runtime has waited for."""
        owner = block.agent
        if owner is None or block.born < owner.born:  # its stream is gone: nothing is handed out on it again
            return
        for cell in block.cells:
            if cell.only(owner):
                continue
            for last in cell.accesses():
                user = last[0]
                if (
                    user is owner
                    or owner.clock.get(user, 0) >= last[1]
                    or cell.polled.get(user, 0) >= last[1]
                ):
                    continue
                loose = self._loose.setdefault(owner, {})
                if user not in loose or loose[user][0][1] < last[1]:
                    loose[user] = (last, block)

    def _look_at_freed_by_thread(self, block: Block, owner: Agent) -> None:
        """Where threads free each other's memory, it may come back at any time: its uses must be known to be over."""
        known = self.threads.known(threading.get_ident(), self.known)
        alone = not owner.shared and owner.caller is not None and owner.caller[0] is self.threads.agent()
        for cell in block.cells:
            for last in cell.accesses():
                user = last[0]
                waited = known.get(user, 0) >= last[1] or cell.polled.get(user, 0) >= last[1]
                if user is owner or waited or (alone and owner.clock.get(user, 0) >= last[1]):
                    continue
                self._report_early(last, block)

    def _report_early(self, last: Command, block: Block) -> None:
        at = place((last[3], last[4]))
        freed = f"freed at {place(block.freed_at)}" if block.freed_at else "freed"
        self._early.setdefault(
            at,
            f"memory that {last[2][0]} at {at} uses on {last[0]} was {freed} without record_stream; it was not "
            "reused too early in this run, but under another schedule it may be: where tensors lie depends on "
            f"when the runtime finds other memory free. Call tensor.record_stream(stream), with {last[0]}, there",
        )

    def forget(self, ptr: int, nbytes: int) -> None:
        """Memory went back to the driver, after a wait for all that used it."""
        for cell in self.shadow.overlapping(ptr, ptr + nbytes):
            self._pending_host.pop(cell, None)
        self.shadow.forget(ptr, nbytes)

    # -- accesses --------------------------------------------------------------------------------------
    def command(
        self, stream: int, footprint: Footprint, ptrs: tuple[int, ...], site: Site | None = None
    ) -> None:
        """A command is about to be queued: check it against all that is not ordered before it, then keep it.

        `site`: where it was recorded; None: where the program is now.

        Raises RaceError in mode "error"; then nothing was kept, and the caller must not queue it.
        """
        agent = self.agents[stream]
        if agent.caught is not self.known:
            self.catch_up(agent)
        number, count = self._next(), agent.count + 1
        code, at = site or caller(3)
        command: Command = (agent, number, footprint.what, code, at, count)
        writers, readers, cells = footprint.found.get(ptrs) or self.shadow.find(
            footprint, ptrs, NOTHING if self.several else self.known
        )
        for cell in cells:
            if cell.sole is not agent:
                self._check(writers, readers, command)
                self._keep(writers, readers, command)
                for used in cells:
                    used.settle(agent)
                break
        else:  # nobody else has used them since they were last written: `_keep`, without a look at others' reads
            for cell in readers:
                last = cell.write
                if last is None or last[1] < cell.block.born:
                    self._check_written(cell, command)
                cell.read = command
            for cell in writers:
                cell.write = command
                cell.read = None
                if cell.neighbours:
                    clear_covered(cell, agent.clock, agent)
        self.number = agent.time = number
        agent.count = count

    def _keep(self, writers: list[Cell], readers: list[Cell], command: Command) -> None:
        """The command is the last that read and wrote these cells."""
        agent = command[0]
        for cell in readers:
            last = cell.write
            if last is None or last[1] < cell.block.born:
                self._check_written(cell, command)
            cell.add_read(command, agent.clock)
        for cell in writers:
            cell.set_write(command)
            clear_covered(cell, agent.clock, agent)

    def _check(self, writers: list[Cell], readers: list[Cell], command: Command) -> None:
        """A command against the last accesses of its cells and their neighbours."""
        agent = command[0]
        clock = agent.clock
        for cell in readers:
            for old in (cell, *cell.neighbours):
                last = old.write
                if last is not None and last[0] is not agent and clock.get(last[0], 0) < last[1]:
                    self._conflict(old, _WRITE, last, cell, _READ, command)
        for cell in writers:
            if not cell.only(agent):
                self._check_write(cell, command, clock)
            for other in cell.neighbours:
                self._check_write(other, command, clock, cell)

    def _check_write(self, old: Cell, command: Command, clock: Clock, cell: Cell | None = None) -> None:
        """A write against the last accesses of its own cell, or of a neighbour."""
        agent = command[0]
        last = old.write
        if last is not None and last[0] is not agent and clock.get(last[0], 0) < last[1]:
            self._conflict(old, _WRITE, last, cell or old, _WRITE, command)
        last = old.read
        if last is not None:
            if last[0] is not agent and clock.get(last[0], 0) < last[1]:
                self._conflict(old, _READ, last, cell or old, _WRITE, command)
        elif old.reads is not None:
            for last in old.reads.values():
                if last[0] is not agent and clock.get(last[0], 0) < last[1]:
                    self._conflict(old, _READ, last, cell or old, _WRITE, command)

    def host_pending(self, ptr: int, nbytes: int) -> None:
        """A queued command uses this host memory: remember to check what the host does with it."""
        for cell in self.shadow.overlapping(ptr, ptr + nbytes):
            self._pending_host[cell] = None

    @property
    def watches_host(self) -> bool:
        """Whether any host memory is in use by commands that the host has not waited for."""
        return bool(self._pending_host)

    def host_access(self, ptr: int, extent: Extent, kind: str, what: Operation) -> None:
        """The host itself reads or writes host memory now. Raises RaceError in mode "error"."""
        for cell in list(self._pending_host):
            if not overlap(ptr, extent, cell.start, cell.extent):
                continue
            for last in list(cell.all_reads()) if kind is _WRITE else ():
                self._check_host(cell, _READ, last, ptr, extent, kind, what)
            if cell.write is not None:
                self._check_host(cell, _WRITE, cell.write, ptr, extent, kind, what)

    def _check_host(
        self, cell: Cell, before: str, last: Command, ptr: int, extent: Extent, kind: str, what: Operation
    ) -> None:
        if self.known.get(last[0], 0) >= last[1]:
            return
        if self.several and self.everyone.get(last[0], 0) >= last[1]:
            self._met_by_chance(last, caller(2))
            return
        if last[1] < cell.block.born and cell.polled.get(last[0], 0) >= last[1]:
            self._reuses_polled += 1
            return
        site = caller(2)
        key = (*_line((last[3], last[4])), *_line(site), before, kind, last[0].device)
        if self._is_known(key):
            return
        first = _access(cell.start, cell.extent, before, last)
        shape, dtype = _shape(extent, kind, what)
        second = Access(kind, what[0], None, self.number, ptr, ptr + span_of(extent), shape, dtype, site)
        text = (
            f"Call synchronize() on {last[0]}, or on an event recorded there after {first.place}, "
            f"before {second.place}."
        )
        ordered = joined(self.known, snapshot(last[0])).get(last[0], 0) >= last[1]
        mend = Mend("synchronize", text, ordered)
        self._report(key, Race(first, second, "pinned host memory", mend, cell.block.site))

    def _settle_host_memory(self) -> None:
        """Host memory whose commands are all known to be done needs no more watching."""
        for cell in list(self._pending_host):
            if all(self._all_know(a[0], a[1]) for a in cell.accesses()):
                del self._pending_host[cell]
                self.shadow.drop(cell)

    # -- findings --------------------------------------------------------------------------------------
    def _conflict(
        self, old: Cell, before: str, last: Command, cell: Cell, kind: str, command: Command
    ) -> None:
        """Two accesses conflict and their clocks do not order them."""
        if self.several and max(command[0].loose.get(last[0], 0), self.everyone.get(last[0], 0)) >= last[1]:
            self._met_by_chance(last, (command[3], command[4]))
            return
        block = cell.block
        reused = last[1] < block.born
        if reused and old.polled.get(last[0], 0) >= last[1]:
            self._reuses_polled += 1
            return
        record = reused and last[0] is not block.agent
        devices = last[0].device, command[0].device
        key = (*_line((last[3], last[4])), *_line((command[3], command[4])), before, kind, record, *devices)
        if self._is_known(key):
            return
        first = _access(old.start, old.extent, before, last)
        second = _access(cell.start, cell.extent, kind, command)
        allocated, freed_number, freed = _life(block, last[1]) if reused else (block.site, 0, None)
        if record:
            mend = _record_stream(first, last[0], freed, freed_number >= last[1])
        else:
            mend = _wait_stream(second, last, command)
        device = "pinned host memory" if block.host else f"cuda:{_device_of(command)}"
        self._report(key, Race(first, second, device, mend, allocated, freed, record, _late(last, command)))

    def _met_by_chance(self, first: Command, second: Site) -> None:
        what = f"memory that {first[2][0]} uses at {place((first[3], first[4]))} is used again"
        self.threads_unordered(what, second)

    def _is_known(self, key: tuple[object, ...]) -> bool:
        """Count a race of two lines that have raced before; where races raise, it is told anew."""
        found = self._races.get(key)
        if found is None:
            return False
        found.count += 1
        return self.mode != "error"

    def _report(self, key: tuple[object, ...], race: Race) -> None:
        self._races.setdefault(key, race)
        if self.mode == "error":
            self._raise(race)

    def _raise(self, race: Race) -> NoReturn:
        self._told = True
        raise RaceError(str(race))

    def _check_written(self, cell: Cell, command: Command) -> None:
        """Note a read of memory that nothing wrote since it was allocated: anything may be in it."""
        block = cell.block
        if (
            self._shared
            or cell.checked == block.born
            or block is NOWHERE
            or block.host
            or cell.start == cell.end
        ):
            return
        cell.checked = block.born
        near = (cell, *cell.neighbours)
        writes = [(c.start, c.extent) for c in near if c.write is not None and c.write[1] >= block.born]
        touched = drawn(cell.start, cell.end, writes)
        wanted = drawn(cell.start, cell.end, [(cell.start, cell.extent)])
        if touched is None or wanted is None:
            unwritten = not writes
        else:
            unwritten = bool(((wanted == 1) & (touched == 0)).any())
        if unwritten:
            at = place((command[3], command[4]))
            made = f", allocated at {place(block.site)}," if block.site else ""
            self._unwritten.setdefault(
                at,
                f"{command[2][0]} at {at} reads memory{made} that was never written: its result is undefined",
            )

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
            self.known = merged(self.known, known)
        self._hosts = {}


def _line(site: Site) -> tuple[str, int]:
    return site[0].co_filename, line_of(site)


def _access(start: int, extent: Extent, kind: str, command: Command) -> Access:
    agent, number, what, code, offset, ordinal = command
    end = start + span_of(extent)
    shape, dtype = _shape(extent, kind, what)
    return Access(
        kind,
        what[0],
        str(agent),
        number,
        start,
        end,
        shape,
        dtype,
        (code, offset),
        agent.site,
        agent.handle,
        ordinal,
    )


def _shape(extent: Extent, kind: str, what: Operation) -> tuple[tuple[int, ...] | None, str | None]:
    """Shape and dtype of the operand that an extent belongs to; None of plain bytes."""
    _, metas, outputs = what
    for meta in metas[:outputs] + metas[outputs:] if kind is _WRITE else metas[outputs:] + metas[:outputs]:
        if extent_of(meta) == extent:
            return meta.shape, repr(meta.dtype)
    return None, None


def _device_of(command: Command) -> int | None:
    metas = command[2][1]
    return metas[0].device.index if metas else command[0].device


def _life(block: Block, number: int) -> tuple[Site | None, int, Site | None]:
    """Where the memory was allocated, when and where freed, in the life that an old command belongs to."""
    lives = [block.last] if block.last else []
    lives += [(b.site, b.freed, b.freed_at) for b in block.prior]
    for site, freed, freed_at in lives:
        if freed >= number:
            return site, freed, freed_at
    return block.site, 0, None


def _record_stream(first: Access, agent: Agent, freed: Site | None, verified: bool) -> Mend:
    """The first stream's use outlived the tensor: `record_stream` makes the runtime wait before reuse."""
    end = f"at {place(freed)}" if freed else "later"
    text = (
        f"Call tensor.record_stream(stream), with {agent}, between the tensor's use at {first.place} "
        f"and its end {end}."
    )
    return Mend("record_stream", text, verified)


def _wait_stream(second: Access, last: Command, command: Command) -> Mend:
    """A wait just before the second access takes over all that the first one's stream was given by then."""
    later, earlier = command[0], last[0]
    name = f"torch.cuda.default_stream({earlier.device})" if earlier.ordinal == 0 else str(earlier)
    text = f"On {later}, call stream.wait_stream({name}) before {second.place}."
    if last[2][0] in COLLECTIVES and earlier.ordinal:  # on a stream of its group, which programs do not have
        text = (
            f"Call wait() on the work that was begun at {place((last[3], last[4]))}, before {second.place}."
        )
    ordered = joined(later.clock, snapshot(earlier)).get(earlier, 0) >= last[1]
    return Mend("wait_stream", text, ordered)


def _late(last: Command, command: Command) -> str:
    """Whether the second stream did wait for the first, but for a point before the access."""
    waited = command[0].waits.get(last[0])
    if waited is None or not last[0].born <= waited[0] < last[1]:
        return ""
    return (
        f"note:   it waits for {last[0]} at {place(waited[1])}, but for a point before this access: record "
        "the event, or call wait_stream, after it."
    )


def _some(places: dict[str, None]) -> str:
    names = list(places)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more places" if len(names) > 3 else "")
