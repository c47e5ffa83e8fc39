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
withheld. That goes for a block that waits for recorded uses, too (`outlive`): had the poll said yes, it would be
handed out. Nor does the program get any order from what the runtime waits for on its own account, as it gives
memory back: whether it has to depends on the schedule, and on what other code left in the cache.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeAlias

from flambeau.core.sites import Site, caller, place
from flambeau.driver.api import HostMemory
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
from flambeau.observe.clocks import NOBODY, NOTHING, Agent, Clock, Reached, joined, without
from flambeau.observe.findings import Findings, Key
from flambeau.observe.indexed.candidates import Circumstances
from flambeau.observe.indexed.deferred import Deferred
from flambeau.observe.indexed.partial import PartialAccess
from flambeau.observe.layouts import Extent, overlap, span_of
from flambeau.observe.order import Order
from flambeau.observe.pinned.lines import view_name
from flambeau.observe.pinned.memory import Export, PinnedMemory, Window
from flambeau.observe.race_builder import (
    READ,
    WRITE,
    GraphLaunch,
    access_of,
    build_race,
    line_at,
    shape_of,
    synchronize_fix,
)
from flambeau.observe.reports import Access, Certificate, Race

_MANY_RETIRED = 64

Check: TypeAlias = Callable[..., Any]
"""`check(stream, ptrs, site=None, depth=3)` of a command: see `Detector.check_of`."""


class Detector(Order):
    """Watches one machine. `mode` is "warn" (collect) or "error" (RaceError at the second access)."""

    __slots__ = (
        "_captured_from", "_captured_to", "_capturing", "_check_written", "_freed", "_launches", "_loose",
        "_many_retired", "_pending_host", "deferred", "pinned", "shadow",
    )  # fmt: skip

    def __init__(self, mode: str = "warn", strict: bool = False) -> None:
        super().__init__(Findings(mode, strict))
        self.pinned = PinnedMemory(self)
        self.shadow = Shadow()
        self.deferred = Deferred(self)
        self._check_written = self.deferred.unwritten.read
        self._many_retired = _MANY_RETIRED
        self._pending_host: dict[Cell, None] = {}
        self._freed: list[Block] = []  # not looked at yet
        self._loose: dict[Agent, dict[Agent, tuple[Command, Block]]] = {}  # by owner: each user's last use
        self._capturing = 0
        self._captured_from: list[int] = []  # numbers between which something was captured
        self._captured_to: list[int] = []
        self._launches: dict[int, GraphLaunch] = {}  # by graph: its latest

    # -- answers --------------------------------------------------------------------------------------
    @property
    def races(self) -> list[Race]:
        """The races found, one for each pair of lines, in the order of their discovery."""
        self.settle()
        return self.findings.races

    def certificate(self) -> Certificate:
        """What this run proves. Asking for it counts as having been told of the races."""
        with self.lock:
            self.settle()
            self.pinned.end()
            questions = self.deferred.unwritten.open_questions()
            return self.findings.certificate(
                self.threads.count, self._several_ranks, self._undecided(), questions
            )

    def settle(self) -> None:
        """Take up what commands that have run report of the places that their indices name."""
        if self.deferred.executed:
            with self.lock:
                self.deferred.settle()

    # -- streams and waits ------------------------------------------------------------------------------
    def remove_stream(self, handle: int) -> None:
        self._loose.pop(self.agents.get(handle, NOBODY), None)  # nothing is handed out on it again
        super().remove_stream(handle)
        if len(self._retired) >= self._many_retired:
            self._drop_retired()

    def host_waited(self, points: Sequence[Reached | None]) -> None:
        before = self.known
        super().host_waited(points)
        if self.known is not before and self._pending_host:
            self._settle_host_memory()
        if self.deferred.executed:
            self.deferred.settle()
        self.pinned.host_waited()
        self.findings.raise_due()

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
        for agent in gone:  # past blocks may still name it: it must not keep those that it knew
            agent.clock, agent.waits = NOTHING, {}
        self.known, self.polled = without(self.known, gone), without(self.polled, gone)
        for agent in itertools.chain.from_iterable(self._on_device.values()):
            agent.clock = without(agent.clock, gone)
            agent.waits = {other: wait for other, wait in agent.waits.items() if other not in gone}
        self._events = {event: (a, n, without(clock, gone)) for event, (a, n, clock) in self._events.items()}
        for cell in self.shadow.cells.values():
            cell.polled = without(cell.polled, gone)

    # -- memory ----------------------------------------------------------------------------------------
    def begin_life(self, ptr: int, nbytes: int, stream: int, written: bool = False) -> None:
        """A piece of memory is handed out, to a stream (0: host memory). Takes the lock if it needs to.

        `written`: by the next launch, which says where: finding that out twice would be a tenth of what a call costs.
        """
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
                self.own(ptr, nbytes, stream, None if written else caller(1))
            return
        block.last = (block.site, block.freed, block.freed_at)
        block.agent = self.agents.get(stream)
        block.born = self._next()
        block.site = None if written else caller(3)
        block.freed = 0

    def own(self, ptr: int, nbytes: int, stream: int | None, site: Site | None, host: bool = False) -> None:
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
        outlived, block.freed = block.freed, self.number
        owner = block.agent or NOBODY
        for cell in block.cells:
            if cell.sole is not owner:
                break
        else:  # nobody else has used it: what its stream does next comes after all of that
            block.freed_at = None
            return
        if not outlived:
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

    def outlive(self, ptr: int, events: Sequence[int]) -> None:
        """The program ended a life; the memory is handed out again once these events of its uses are done.

        Whether this run sees that or not, another schedule may: what no event marks is in use then. See Note [Reuse].
        """
        block = self.shadow.blocks.get(ptr)
        if block is not None:
            block.freed, block.freed_at = self.number, caller(2)
            points = [point for event in events if (point := self._events.get(event)) is not None]
            awaited = reduce(joined, points, NOTHING)
            if block.host:
                self._look_at_freed_pinned(block, awaited)
            else:
                self._look_at_freed(block, awaited)

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

    def _look_at_freed(self, block: Block, awaited: Clock = NOTHING) -> None:
        """Note the last use of each stream that neither the owner's stream nor the runtime waits for, or has.

        Those in earlier lives were looked at when these ended: what took the memory over had their end proved.
        """
        owner = block.agent
        if owner is None or self.agents.get(owner.handle) is not owner or block.born < owner.born:
            return  # its stream is gone: nothing is handed out on it again
        for cell in block.cells:
            if cell.only(owner):
                continue
            for last in cell.accesses():
                user = last[0]
                if (
                    user is owner
                    or last[1] < block.born
                    or owner.clock.get(user, 0) >= last[1]
                    or cell.polled.get(user, 0) >= last[1]
                    or awaited.get(user, 0) >= last[1]
                ):
                    continue
                loose = self._loose.setdefault(owner, {})
                if user not in loose or loose[user][0][1] < last[1]:
                    loose[user] = (last, block)

    def _look_at_freed_pinned(self, block: Block, awaited: Clock) -> None:
        """Withhold the certificate if copies use a block of pinned memory that its allocator does not wait for."""
        for last in itertools.chain.from_iterable(cell.accesses() for cell in block.cells):
            if last[1] >= block.born and not any(
                clock.get(last[0], 0) >= last[1] for clock in (self.known, awaited)
            ):
                site = last[3], last[4]
                self.findings.freed_early(
                    site,
                    f"pinned memory that {last[2][0]} at {place(site)} uses on {last[0]} is freed while the copy may "
                    "run. The copy went through another object over a part of the memory, so PyTorch's allocator does "
                    "not wait for it and may hand the memory out again. Keep the pinned tensor until the host has "
                    "waited for the copy",
                )

    def _look_at_freed_by_thread(self, block: Block, owner: Agent) -> None:
        """Where threads free each other's memory, it may come back at any time: its uses must be known to be over.

        Those in earlier lives were looked at when these ended.
        """
        known = self.threads.known(threading.get_ident(), self.known)
        alone = not owner.shared and owner.caller is not None and owner.caller[0] is self.threads.agent()
        for cell in block.cells:
            for last in cell.accesses():
                user = last[0]
                waited = known.get(user, 0) >= last[1] or cell.polled.get(user, 0) >= last[1]
                earlier = last[1] < block.born
                if user is owner or earlier or waited or (alone and owner.clock.get(user, 0) >= last[1]):
                    continue
                self._report_early(last, block)

    def _report_early(self, last: Command, block: Block) -> None:
        at = place((last[3], last[4]))
        freed = f"freed at {place(block.freed_at)}" if block.freed_at else "freed"
        self.findings.freed_early(
            (last[3], last[4]),
            f"memory that {last[2][0]} at {at} uses on {last[0]} was {freed} without record_stream; it was not "
            "reused too early in this run, but under another schedule it may be: where tensors lie depends on "
            f"when the runtime finds other memory free. Call tensor.record_stream(stream), with {last[0]}, there",
        )

    # -- captures --------------------------------------------------------------------------------------
    def capture_begins(self) -> None:
        if not self._capturing:
            self._captured_from.append(self._next())
        self._capturing += 1

    def capture_ends(self) -> None:
        self._capturing -= 1
        if not self._capturing:
            self._captured_to.append(self._next())

    @contextmanager
    def launching(self, graph: int, stream: int, site: Site) -> Iterator[None]:
        """The commands meanwhile are a graph's, launched on a stream."""
        launch = self._launches[graph] = GraphLaunch(self.agents[stream], site, self.number)
        try:
            yield
        finally:
            launch.end = self.number

    def forget_launch(self, graph: int) -> None:
        self._launches.pop(graph, None)

    def lent(self, ptrs: Sequence[int]) -> list[Block]:
        """Whose memory a captured command uses: what lives, and was not made for a graph, which keeps that."""
        blocks = dict.fromkeys([self.shadow.owner(ptr) for ptr in ptrs])
        return [b for b in blocks if b is not NOWHERE and not b.freed and not self._made_for_a_graph(b)]

    def _made_for_a_graph(self, block: Block) -> bool:
        at = bisect(self._captured_from, block.born) - 1
        return at >= 0 and (at == len(self._captured_to) or block.born < self._captured_to[at])

    def check_lent(self, lent: Mapping[Block, int], site: Site) -> None:
        """A graph is launched that uses these blocks, each in the life that began at a number: does it last?

        What it does to the memory of others is looked at as any access is. But whose memory that is, if anybody's,
        depends on when it was handed out again, and that on the schedule.
        """
        for block, born in lent.items():
            if block.born != born or block.freed:
                freed = f" at {place(block.freed_at)}" if block.freed and block.freed_at else ""
                self.findings.freed_early(
                    site,
                    f"the graph launched at {place(site)} uses memory that was there when it was captured, and was "
                    f"freed{freed}: whose it is now depends on the schedule. Keep the tensor while the graph is used",
                )

    def forget(self, ptr: int, nbytes: int) -> None:
        """Memory went back to the driver, after a wait for all that used it."""
        for cell in self.shadow.overlapping(ptr, ptr + nbytes):
            self._pending_host.pop(cell, None)
        self.pinned.forgotten(ptr, nbytes)
        self.shadow.forget(ptr, nbytes)

    # -- accesses --------------------------------------------------------------------------------------
    def check_of(self, footprint: Footprint) -> Check:
        """The check of commands with a footprint: `check(stream, ptrs, site, depth)`.

        Where indices name places, it returns the `PartialAccess` that the kernel reports to, or None.

        A command is about to be queued: it is checked against all that is not ordered before it, then kept.
        `site`: where it was recorded; None: where the program is now, at least `depth` frames further out. Raises
        RaceError in mode "error"; then nothing was kept, and the caller must not queue it.

        All that stays the same from one command to the next is bound here: this is what is called most.
        """
        if footprint.touches is not None:
            return self._check_of_partial(footprint)
        agents, take, what = self.agents, self._next, footprint.what
        remembered, find = footprint.found.get, self.shadow.find

        def check(stream: int, ptrs: tuple[int, ...], site: Site | None = None, depth: int = 3) -> None:
            agent = agents[stream]
            if agent.caught is not self.known:
                self.catch_up(agent)
            number, count = take(), agent.count + 1
            code, at = site or caller(depth)
            command: Command = (agent, number, what, code, at, count)
            writers, readers, cells = remembered(ptrs) or find(
                footprint, ptrs, NOTHING if self.several else self.known
            )
            for cell in cells:
                if cell.sole is not agent:
                    self._command(writers, readers, cells, command)
                    break
            else:  # nobody else has used them since they were last written: `_keep`, without a look at others' reads
                for cell in readers:
                    last = cell.write
                    if last is None or last[1] < cell.block.born:
                        self._check_written(cell, command, cell in writers)
                    cell.read = command
                for cell in writers:
                    cell.write = command
                    cell.read = None
                    if cell.block.site is None:
                        cell.block.place((code, at))
                    if cell.neighbours:
                        clear_covered(cell, agent.clock, agent)
            self.number = agent.time = number
            agent.count = count

        return check

    def _check_of_partial(self, footprint: Footprint) -> Check:
        """Return the check of commands of which indices name the places of one operand."""
        agents, what, touches, deferred = self.agents, footprint.what, footprint.touches, self.deferred
        assert touches is not None
        unwritten = deferred.unwritten

        def check(
            stream: int, ptrs: tuple[int, ...], site: Site | None = None, depth: int = 3
        ) -> PartialAccess | None:
            agent = agents[stream]
            if agent.caught is not self.known:
                self.catch_up(agent)
            number, count = self._next(), agent.count + 1
            code, at = site or caller(depth)
            command: Command = (agent, number, what, code, at, count)
            writers, readers, cells = footprint.found.get(ptrs) or self.shadow.find(
                footprint, ptrs, NOTHING if self.several else self.known
            )
            position, access = footprint.partial(ptrs), None
            if position is not None:
                cell = cells[position]
                if touches.rewrites and unwritten.is_written(cell):
                    writers, readers = [cell, *writers], [cell, *readers]
                else:
                    access = deferred.access(cell, command, what[1][position], touches)
            alone = all(cell.sole is agent for cell in cells)
            if not alone:
                self._check(writers, readers, command)
                if access is not None:
                    deferred.check(access)
            for cell in writers if access is None else [*writers, *([access.cell] if access.writes else [])]:
                if cell.block.site is None:
                    cell.block.place((code, at))
            if access is not None:
                unwritten.note(access)
            self._keep(writers, readers, command)
            if access is not None:
                deferred.keep(access)
            if deferred.fresh:
                deferred.keep_fresh()
            if not alone:
                for cell in cells:
                    cell.settle(agent)
            self.number = agent.time = number
            agent.count = count
            return access

        return check

    def _command(self, writers: list[Cell], readers: list[Cell], cells: list[Cell], command: Command) -> None:
        """A command whose cells others have used as well."""
        agent = command[0]
        for cell in writers:
            if cell.block.site is None:
                cell.block.place((command[3], command[4]))
        self._check(writers, readers, command)
        self._keep(writers, readers, command)
        if self.deferred.fresh:
            self.deferred.keep_fresh()
        for cell in cells:
            cell.settle(agent)

    def _keep(self, writers: list[Cell], readers: list[Cell], command: Command) -> None:
        """The command is the last that read and wrote these cells."""
        agent = command[0]
        for cell in readers:
            last = cell.write
            if last is None or last[1] < cell.block.born:
                self._check_written(cell, command, cell in writers)
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
                    self._conflict(old, WRITE, last, cell, READ, command)
                if old.partial is not None:
                    self.deferred.against(old, cell, READ, command)
        for cell in writers:
            if not cell.only(agent):
                self._check_write(cell, command, clock)
            for other in cell.neighbours:
                self._check_write(other, command, clock, cell)

    def _check_write(self, old: Cell, command: Command, clock: Clock, cell: Cell | None = None) -> None:
        """A write against the last accesses of its own cell, or of a neighbour."""
        agent = command[0]
        if old.partial is not None:
            self.deferred.against(old, cell or old, WRITE, command)
        last = old.write
        if last is not None and last[0] is not agent and clock.get(last[0], 0) < last[1]:
            self._conflict(old, WRITE, last, cell or old, WRITE, command)
        last = old.read
        if last is not None:
            if last[0] is not agent and clock.get(last[0], 0) < last[1]:
                self._conflict(old, READ, last, cell or old, WRITE, command)
        elif old.reads is not None:
            for last in old.reads.values():
                if last[0] is not agent and clock.get(last[0], 0) < last[1]:
                    self._conflict(old, READ, last, cell or old, WRITE, command)

    def use_pinned(self, memory: HostMemory, kind: str, stream: int) -> None:
        """The command that was just checked uses pinned memory: check what the host does there from now on."""
        for cell in self.shadow.overlapping(memory.ptr, memory.ptr + memory.nbytes):
            self._pending_host[cell] = None
        cell = self.shadow.cells[memory.ptr, memory.nbytes]
        last = cell.write if kind is WRITE else cell.read
        if last is None:
            assert cell.reads is not None
            last = cell.reads[self.agents[stream]]
        self.pinned.used(memory, kind, last)

    def pending_host(self, ptr: int, nbytes: int) -> Iterator[tuple[Cell, str, Command]]:
        """The commands that use this host memory and that the host does not know to be over."""
        for cell in list(self._pending_host):
            if cell.start < ptr + nbytes and ptr < cell.end:
                accesses = [(READ, read) for read in cell.all_reads()]
                accesses += [(WRITE, cell.write)] if cell.write is not None else []
                for kind, last in accesses:
                    if self.known.get(last[0], 0) < last[1] and last[1] >= cell.block.born:
                        yield cell, kind, last

    def host_writes(self, keys: Sequence[tuple[int, Extent]]) -> None:
        """The host writes memory, in a way that was looked at where commands use it."""
        for ptr, extent in keys:
            if self.pinned.contains(ptr):
                with self.lock:
                    self.pinned.written(ptr, extent)

    def host_exports(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        """Another object shows host memory, while `view` lives (None: for ever)."""
        if self.pinned.contains(ptr):
            with self.lock:
                self.pinned.exported(ptr, nbytes, what, view)

    @property
    def watches_host(self) -> bool:
        """Whether any host memory is in use by commands that the host has not waited for."""
        return bool(self._pending_host)

    def host_access(self, ptr: int, extent: Extent, kind: str, what: Operation) -> None:
        """The host itself reads or writes host memory now. Raises RaceError in mode "error"."""
        for cell in list(self._pending_host):
            if not overlap(ptr, extent, cell.start, cell.extent):
                continue
            for last in list(cell.all_reads()) if kind is WRITE else ():
                self._check_host(cell, READ, last, ptr, extent, kind, what)
            if cell.write is not None:
                self._check_host(cell, WRITE, cell.write, ptr, extent, kind, what)

    def _check_host(
        self, cell: Cell, before: str, last: Command, ptr: int, extent: Extent, kind: str, what: Operation
    ) -> None:
        if self.known.get(last[0], 0) >= last[1]:
            return
        if self.several and self.everyone.get(last[0], 0) >= last[1]:
            self._met_by_chance(last, caller(2))
            return
        if last[1] < cell.block.born and cell.polled.get(last[0], 0) >= last[1]:
            self.findings.reuses_polled += 1
            return
        site = caller(2)
        key = (*line_at((last[3], last[4])), *line_at(site), last[0].device)
        if self.findings.is_known(key, before, kind, None):
            return
        launch = self.launch_of(last)
        first = access_of(cell.start, cell.extent, before, last, launch)
        shape, dtype = shape_of(extent, kind, what)
        second = Access(kind, what[0], None, self.number, ptr, ptr + span_of(extent), shape, dtype, site)
        fix = synchronize_fix(first, second.place, last, launch, self.known)
        self.findings.report(key, Race(first, second, "pinned host memory", fix, cell.block.site))

    def host_changed(self, low: int, high: int, window: Window, site: Site | None) -> None:
        """The host has changed bytes unseen, before `site`, that a pending command uses. See Note [Unseen accesses]."""
        view = window.life.exported
        assert view is not None and view.site is not None
        until = "the end" if site is None else "this line"
        second = self._unseen(WRITE, f"a write through a view, before {until},", low, high, site or view.site)
        note = (
            f"note:   the bytes changed after {place(window.site)}, and no operator of the program's wrote them: "
            f"{view_name(view.what, view.site)} shows the memory."
        )
        when = "the host writes there, which it did afterwards"
        self._report_unseen(window, second, when + (f" and before {second.place}" if site else ""), note)

    def host_looked(self, window: Window, view: Export) -> None:
        """A view of what a command was to write was taken, used and dropped before the host has waited."""
        assert view.site is not None
        second = self._unseen(READ, f"a read through {view.what}", view.start, view.end, view.site)
        self._report_unseen(window, second, second.place)

    def _unseen(self, kind: str, what: str, start: int, end: int, site: Site) -> Access:
        return Access(kind, what, None, self.number, start, end, None, None, site)

    def _report_unseen(self, window: Window, second: Access, when: str, note: str = "") -> None:
        last = window.command
        if self.several and self.everyone.get(last[0], 0) >= last[1]:
            self._met_by_chance(last, second.site)
            return
        key = (*line_at(window.site), *line_at(second.site), last[0].device, second.operator)
        if self.findings.is_known(key, window.kind, second.kind, None):
            return
        launch = self.launch_of(last)
        first = access_of(window.start, window.end - window.start, window.kind, last, launch)
        fix = synchronize_fix(first, when, last, launch, self.known)
        race = Race(first, second, "pinned host memory", fix, window.life.block.site, note=note)
        self.findings.report(key, race, late=True)

    def _settle_host_memory(self) -> None:
        """Host memory whose commands are all known to be done needs no more watching."""
        for cell in list(self._pending_host):
            if all(self.all_know(a[0], a[1]) for a in cell.accesses()):
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
        if last[1] < block.born and old.polled.get(last[0], 0) >= last[1]:
            self.findings.reuses_polled += 1
            return
        key = _key(block, block.born, last, command)
        if self.findings.is_known(key, before, kind, command[1]):
            return
        launches, lifetime = (self.launch_of(last), self.launch_of(command)), (block.born, block.site)
        waited = self._waited(last, command[0])
        race = build_race(old, before, last, cell, kind, command, launches, waited, lifetime)
        self._report(key, race)

    def conflict(
        self,
        old: Cell,
        before: str,
        last: Command,
        cell: Cell,
        kind: str,
        command: Command,
        seen: Circumstances,
    ) -> None:
        """Two accesses conflict of which one names its places by indices: see Note [Deferred decisions]."""
        if seen.by_chance:
            self._met_by_chance(last, (command[3], command[4]))
            return
        born = seen.candidate.born
        if last[1] < born and old.polled.get(last[0], 0) >= last[1]:
            self.findings.reuses_polled += 1
            return
        key = _key(cell.block, born, last, command)
        if not self.findings.is_known(key, before, kind, command[1]):
            self._report(key, self._race_of(old, before, last, cell, kind, command, seen), seen.late)

    def _race_of(
        self,
        old: Cell,
        before: str,
        last: Command,
        cell: Cell,
        kind: str,
        command: Command,
        seen: Circumstances,
    ) -> Race:
        """Return the race of a candidate."""
        lifetime, waited = (seen.candidate.born, seen.candidate.site), self._waited(last, command[0])
        race = build_race(old, before, last, cell, kind, command, seen.launches, waited, lifetime)
        race.note = " ".join([*([race.note] if race.note else []), *dict.fromkeys(seen.notes)])
        if seen.span is not None:
            race.meeting = seen.span
        return race

    def _undecided(self) -> dict[Key, Race]:
        """Return what counts as races as long as commands have not run that name places by indices."""
        found: dict[Key, Race] = {}
        for c, seen in self.deferred.undecided():
            key = _key(c.cell.block, c.born, c.last, c.command)
            if not seen.by_chance and key not in found:
                found[key] = self._race_of(c.old, c.before, c.last, c.cell, c.kind, c.command, seen)
        return found

    def _report(self, key: Key, race: Race, late: bool = False) -> None:
        if self.findings.mode == "error":
            if late:
                self.running = 0  # so that the next call comes by `enter`, which raises it
            else:
                self.deferred.fresh.clear()  # the second command is not enqueued
        self.findings.report(key, race, late)

    def launch_of(self, command: Command) -> GraphLaunch | None:
        """The launch of a graph that a command belongs to; None too where the graph was launched again since."""
        return next((launch for launch in self._launches.values() if launch.has(command)), None)

    def _waited(self, last: Command, later: Agent) -> Agent | None:
        """Of a process group's command: another stream of the program that has waited for it."""
        if last[0].grouped:
            for agent in self._on_device[last[0].device]:
                wait = agent.waits.get(last[0])
                if wait is not None and wait[0] >= last[1] and agent is not later and not agent.grouped:
                    return agent
        return None

    def _met_by_chance(self, first: Command, second: Site) -> None:
        what = f"memory that {first[2][0]} uses at {place((first[3], first[4]))} is used again"
        self.findings.threads_unordered(what, second)


def _key(block: Block, born: int, last: Command, command: Command) -> Key:
    """Return what makes races of two lines one report."""
    record = last[1] < born and last[0] is not block.agent
    lines = *line_at((last[3], last[4])), *line_at((command[3], command[4]))
    return *lines, record, last[0].device, command[0].device
