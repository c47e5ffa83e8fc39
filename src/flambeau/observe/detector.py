"""The race detector: it finds conflicting accesses to one piece of memory that nothing orders.

It owns all race clocks. See Note [Clocks] and Note [Cells]; docs/determinism.md explains the result.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from flambeau.core.callsite import Site, caller, place
from flambeau.observe.accesses import (
    NOWHERE,
    Cell,
    Command,
    Footprint,
    FreedUse,
    Operation,
    ShadowBlock,
    clear_covered,
)
from flambeau.observe.clocks import NOTHING, Clock, LogicalThread, Reached, without
from flambeau.observe.findings import Findings, Key
from flambeau.observe.indexed.candidates import Circumstances
from flambeau.observe.indexed.deferred import Deferred
from flambeau.observe.indexed.partial import Operand, PartialAccess
from flambeau.observe.layouts import Extent, overlap, span_of
from flambeau.observe.lifetimes import Lifetimes
from flambeau.observe.pinned.lines import view_name
from flambeau.observe.pinned.memory import Export, PinnedMemory, PinnedUse, Window
from flambeau.observe.race_builder import (
    READ,
    READ_WRITE,
    WRITE,
    GraphLaunch,
    access_of,
    build_race,
    line_at,
    shape_of,
    synchronize_fix,
)
from flambeau.observe.reporting.fixes import Proposer, Select
from flambeau.observe.reporting.operators import public_name, repetition
from flambeau.observe.reports import Certificate, Race, RaceAccess

_MANY_RETIRED = 64

Check: TypeAlias = Callable[..., Any]
"""A function `check(stream, ptrs, site=None, depth=3)` for commands; see `Detector.check_of`."""


class Detector(Lifetimes):
    """The race detector of one machine.

    `mode` is "warn" (collect races) or "error" (raise RaceError at the second access).
    """

    __slots__ = (
        "_captured_from", "_captured_to", "_capturing", "_check_written", "_launches", "_many_retired",
        "_pending_host", "before_certificate", "deferred", "pinned", "select",
    )  # fmt: skip

    def __init__(self, mode: str = "warn", strict: bool = False) -> None:
        super().__init__(Findings(mode, strict))
        self.pinned = PinnedMemory(self)
        self.deferred = Deferred(self)
        self._check_written = self.deferred.unwritten.read
        self.before_certificate: Callable[[Detector], None] = lambda detector: None
        self.select: Select | None = None  # returns the expressions of current streams, for fixes
        self._many_retired = _MANY_RETIRED
        self._pending_host: dict[Cell, None] = {}
        self._capturing = 0
        self._captured_from: list[int] = []  # numbers between which commands were captured
        self._captured_to: list[int] = []
        self._launches: dict[int, GraphLaunch] = {}  # graph -> its latest launch

    # -- answers --------------------------------------------------------------------------------------
    @property
    def races(self) -> list[Race]:
        """Return the races found, one for each pair of call sites, in the order of their discovery."""
        self.settle()
        return self.findings.races

    def certificate(self) -> Certificate:
        """Return what this run proves. The races count as shown to the user after this call."""
        self.before_certificate(self)
        with self.lock:
            self.settle()
            self.pinned.end()
            questions = self.deferred.unwritten.open_questions()
            return self.findings.certificate(
                max(self.threads.count, min(self.threads.logical, 2)),
                self._several_ranks,
                self._undecided_races(),
                questions,
            )

    def settle(self) -> None:
        """Process the elements that executed commands report for their index operands."""
        if self.deferred.executed:
            with self.lock:
                self.deferred.settle()

    # -- streams and waits ------------------------------------------------------------------------------
    def remove_stream(self, handle: int) -> None:
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
        """Drop logical threads whose commands no memory and no event refers to, for programs that never wait
        on the host.
        """
        used = {access[0] for cell in self.shadow.cells.values() for access in cell.accesses()}
        used |= {point[0] for point in self._events.values()}
        used |= self._agents_in_lifetimes(set(self._retired))
        gone = set(self._retired) - used
        self._retired = [agent for agent in self._retired if agent in used]
        self._many_retired = _MANY_RETIRED + 2 * len(self._retired)
        for agents in self._on_device.values():
            agents[:] = [agent for agent in agents if agent not in gone]
        # blocks of ended lifetimes may refer to it; it must not keep other logical threads alive
        for agent in gone:
            agent.clock, agent.waits = NOTHING, {}
        self.known, self.polled = without(self.known, gone), without(self.polled, gone)
        for agent in itertools.chain.from_iterable(self._on_device.values()):
            agent.clock = without(agent.clock, gone)
            agent.waits = {other: wait for other, wait in agent.waits.items() if other not in gone}
        self._events = {event: (a, n, without(clock, gone)) for event, (a, n, clock) in self._events.items()}
        for cell in self.shadow.cells.values():
            cell.polled = without(cell.polled, gone)
        self._forget_agents(gone)

    # -- memory ----------------------------------------------------------------------------------------
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
        """Treat the commands inside of this context as those of a graph that is launched on a stream."""
        launch = self._launches[graph] = GraphLaunch(self.agents[stream], site, self.number)
        try:
            yield
        finally:
            launch.end = self.number

    def forget_launch(self, graph: int) -> None:
        self._launches.pop(graph, None)

    def find_captured_blocks(self, ptrs: Sequence[int]) -> list[ShadowBlock]:
        """Return the live blocks that a captured command uses, except those that belong to the graph."""
        blocks = dict.fromkeys([self.shadow.owner(ptr) for ptr in ptrs])
        return [b for b in blocks if b is not NOWHERE and not b.freed and not self._made_for_a_graph(b)]

    def _made_for_a_graph(self, block: ShadowBlock) -> bool:
        at = bisect(self._captured_from, block.born) - 1
        return at >= 0 and (at == len(self._captured_to) or block.born < self._captured_to[at])

    def check_lent(self, lent: Mapping[ShadowBlock, int], site: Site) -> None:
        """Check that the blocks that a launched graph uses are in the lifetimes in which they were captured.

        An access to other memory is checked as any access is. But if the block was freed, it depends on the
        schedule when, and for which allocation, its memory is reused.
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
        """Drop memory that was returned to the driver, after a wait for all its uses."""
        for cell in self.shadow.overlapping(ptr, ptr + nbytes):
            self._pending_host.pop(cell, None)
        self.pinned.on_unpin(ptr, nbytes)
        super().forget(ptr, nbytes)

    # -- accesses --------------------------------------------------------------------------------------
    def check_of(self, footprint: Footprint) -> Check:
        """Return the check of commands with a footprint: `check(stream, ptrs, site, depth)`.

        The check compares a command, before it is enqueued, with everything that is not ordered before it,
        and then keeps it. If indices select elements, it returns the `PartialAccess` that the kernel
        reports to, otherwise None. `site` is where the command was recorded; None: the program's present
        line, at least `depth` frames further out. In mode "error" the check raises RaceError; then nothing
        was kept and the caller must not enqueue the command.

        Everything that stays the same from one command to the next is bound here, because the check is the
        most frequent call.
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
            # The cells have a sole user since they were last written. This is `_keep` without a check of
            # others' reads.
            else:
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
        """Return the check of commands whose indices select the elements of one operand."""
        touches, what, deferred = footprint.touches, footprint.what, self.deferred
        assert touches is not None
        agents, take, unwritten = self.agents, self._next, deferred.unwritten
        remembered, find, partial = footprint.found.get, self.shadow.find, footprint.partial
        source = None if touches.target else footprint.outputs
        operand = Operand(what[1][source or 0], touches, deferred)

        def check(
            stream: int, ptrs: tuple[int, ...], site: Site | None = None, depth: int = 3
        ) -> PartialAccess | None:
            agent = agents[stream]
            if agent.caught is not self.known:
                self.catch_up(agent)
            number, count = take(), agent.count + 1
            code, at = site or caller(depth)
            command: Command = (agent, number, what, code, at, count)
            writers, readers, cells = remembered(ptrs) or find(
                footprint, ptrs, NOTHING if self.several else self.known
            )
            position, access = source or partial(ptrs), None
            if position is not None:
                cell = cells[position]
                last = cell.write
                if last is None or last[1] < cell.block.born:
                    access = deferred.access(cell, command, operand)
                    unwritten.note(access)
                elif touches.rewrites:
                    writers, readers = [cell, *writers], [cell, *readers]
                else:
                    access = deferred.access(cell, command, operand)
            for cell in cells:
                if cell.sole is not agent:
                    self._command(writers, readers, cells, command, access)
                    break
            # The same comparison as in `check_of`.
            else:
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
                if access is not None:
                    deferred.keep(access)
            self.number = agent.time = number
            agent.count = count
            return access

        return check

    def _command(
        self,
        writers: list[Cell],
        readers: list[Cell],
        cells: list[Cell],
        command: Command,
        access: PartialAccess | None = None,
    ) -> None:
        """Check a command whose cells others have used as well, and its access to elements that indices
        select.
        """
        agent, deferred = command[0], self.deferred
        written = writers if access is None or not access.writes else [access.cell, *writers]
        for cell in written:
            if cell.block.site is None:
                cell.block.place((command[3], command[4]))
        self._check_reuses(written, command)
        self._check(writers, readers, command)
        if access is not None:
            deferred.check(access)
        self._keep(writers, readers, command)
        if access is not None:
            deferred.keep(access)
        if deferred.fresh:
            deferred.keep_fresh()
        self._settle(cells, agent)

    def _settle(self, cells: list[Cell], agent: LogicalThread) -> None:
        """Update the cells after a stream has used them."""
        for cell in cells:
            cell.settle(agent)
            if cell.block.agent is not agent:
                cell.block.shared = cell.block.born

    def _keep(self, writers: list[Cell], readers: list[Cell], command: Command) -> None:
        """Keep the command as the last one that read and wrote these cells."""
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
        """Compare a command with the last accesses of its cells and their neighbours."""
        agent = command[0]
        clock = agent.clock
        for cell in readers:
            for old in (cell, *cell.neighbours):
                last = old.write
                if last is not None and last[0] is not agent and clock.get(last[0], 0) < last[1]:
                    self._conflict(old, WRITE, last, cell, READ_WRITE if cell in writers else READ, command)
                if old.partial is not None:
                    self.deferred.against(old, cell, READ, command)
        for cell in writers:
            if not cell.only(agent):
                self._check_write(cell, command, clock)
            for other in cell.neighbours:
                self._check_write(other, command, clock, cell)

    def _check_write(self, old: Cell, command: Command, clock: Clock, cell: Cell | None = None) -> None:
        """Compare a write with the last accesses of its own cell, or of a neighbour."""
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

    def _check_reuses(self, writers: list[Cell], command: Command) -> None:
        """Compare a stream's first writes to blocks with the uses of freed memory. See Note [Reuse by
        contract].
        """
        for cell in writers:
            if cell.block.exposed or cell.block.agent is not command[0]:
                self._check_reuse(cell, command)

    def _check_reuse(self, cell: Cell, command: Command) -> None:
        block, agent = cell.block, command[0]
        if block.compared_life != block.born:
            block.compared, block.compared_life = set(), block.born
        if agent in block.compared or cell.start == cell.end:
            return
        for use in self.unordered_uses(block, command):
            self._may_reuse(use, cell, command)
        block.compared.add(agent)

    def _may_reuse(self, use: FreedUse, cell: Cell, command: Command) -> None:
        """Report a write of memory that may overlap memory which a use of freed memory still accesses."""
        last, agent, block = use.command, command[0], cell.block
        if self.several and max(agent.loose.get(use.agent, 0), self.everyone.get(use.agent, 0)) >= use.number:
            self._met_by_chance(last, (command[3], command[4]))
            return
        block.reported = block.born
        owner = block.agent
        record = owner is not None and owner.clock.get(use.agent, 0) < use.number and last[0] is not owner
        second = use.freed_at if record and use.freed_at else (command[3], command[4])
        key = ("freed", *line_at((last[3], last[4])), *line_at(second), record, last[0].device, agent.device)
        if self.findings.is_known(key, use.kind, WRITE, command[1]):
            return
        launches, lifetime = (self.launch_of(last), self.launch_of(command)), (block.born, block.site)
        waited = self._find_waiter(last, agent)
        race = build_race(
            use, use.kind, last, cell, WRITE, command, launches, waited, lifetime, self.select, record
        )
        self._report(key, race)

    def use_pinned(self, use: PinnedUse, stream: int) -> None:
        """Watch the host's accesses to pinned memory that the command which was just checked uses."""
        for cell in self.shadow.overlapping(use.ptr, use.ptr + use.nbytes):
            self._pending_host[cell] = None
        cell = self.shadow.cells[use.ptr, use.nbytes]
        last = cell.write if use.kind is WRITE else cell.read
        if last is None:
            assert cell.reads is not None
            last = cell.reads[self.agents[stream]]
        self.pinned.on_command(use, last)

    def pending_host(self, ptr: int, nbytes: int) -> Iterator[tuple[Cell, str, Command]]:
        """Yield the commands that use this host memory and that the host does not know to be done."""
        for cell in list(self._pending_host):
            if cell.start < ptr + nbytes and ptr < cell.end:
                accesses = [(READ, read) for read in cell.all_reads()]
                accesses += [(WRITE, cell.write)] if cell.write is not None else []
                for kind, last in accesses:
                    if self.known.get(last[0], 0) < last[1] and last[1] >= cell.block.born:
                        yield cell, kind, last

    def host_writes(self, keys: Sequence[tuple[int, Extent]]) -> None:
        """Record a write of the host that was checked already."""
        for ptr, extent in keys:
            if self.pinned.contains(ptr):
                with self.lock:
                    self.pinned.on_host_write(ptr, extent)

    def host_exports(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        """Record that another object exposes host memory while `view` lives (None: forever)."""
        if self.pinned.contains(ptr):
            with self.lock:
                if threading.get_ident() != self.running:
                    self.enter()
                self.pinned.on_export(ptr, nbytes, what, view)

    @property
    def watches_host(self) -> bool:
        """Return True if a command uses host memory and the host has not waited for it."""
        return bool(self._pending_host)

    def host_access(self, ptr: int, extent: Extent, kind: str, what: Operation) -> None:
        """Check an access of the host to host memory.

        Raises:
            RaceError: In mode "error", if the access races.
        """
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
        second = RaceAccess(kind, what[0], None, self.number, ptr, ptr + span_of(extent), shape, dtype, site)
        second = replace(second, name=public_name(what[0], site))
        first = replace(first, when=repetition(first.issued, site))
        proposer = Proposer(self.select, site)
        fix = synchronize_fix(first, second.place, last, launch, self.known, proposer)
        self.findings.report(key, Race(first, second, "pinned host memory", fix, cell.block.site))

    def host_changed(self, low: int, high: int, window: Window, site: Site | None) -> None:
        """Report bytes of a pending command that the host changed unseen before `site`. See Note [Unseen
        accesses].
        """
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
        """Report a view of a pending command's target that was taken, used and dropped before the host waited."""
        assert view.site is not None
        second = self._unseen(READ, f"a read through {view.what}", view.start, view.end, view.site)
        self._report_unseen(window, second, second.place)

    def _unseen(self, kind: str, what: str, start: int, end: int, site: Site) -> RaceAccess:
        return RaceAccess(kind, what, None, self.number, start, end, None, None, site)

    def _report_unseen(self, window: Window, second: RaceAccess, when: str, note: str = "") -> None:
        last = window.command
        if self.several and self.everyone.get(last[0], 0) >= last[1]:
            self._met_by_chance(last, second.site)
            return
        key = (*line_at(window.site), *line_at(second.site), last[0].device, second.operator)
        if self.findings.is_known(key, window.kind, second.kind, None):
            return
        launch = self.launch_of(last)
        first = access_of(window.start, window.end - window.start, window.kind, last, launch)
        fix = synchronize_fix(first, when, last, launch, self.known, None)
        race = Race(first, second, "pinned host memory", fix, window.life.block.site, note=note)
        self.findings.report(key, race, late=True)

    def _settle_host_memory(self) -> None:
        """Stop watching host memory whose commands are all known to be done."""
        for cell in list(self._pending_host):
            if all(self.all_know(a[0], a[1]) for a in cell.accesses()):
                del self._pending_host[cell]
                self.shadow.drop(cell)

    # -- findings --------------------------------------------------------------------------------------
    def _conflict(
        self, old: Cell, before: str, last: Command, cell: Cell, kind: str, command: Command
    ) -> None:
        """Report two conflicting accesses that their clocks do not order."""
        if self.several and max(command[0].loose.get(last[0], 0), self.everyone.get(last[0], 0)) >= last[1]:
            self._met_by_chance(last, (command[3], command[4]))
            return
        block = cell.block
        if last[1] < block.born and block.reported == block.born:
            return  # the reuse was reported, independent of where the allocator put the memory
        if last[1] < block.born and old.polled.get(last[0], 0) >= last[1]:
            self.findings.reuses_polled += 1
            return
        key = _key(block, block.born, last, command)
        if self.findings.is_known(key, before, kind, command[1], (last[0].handle, command[0].handle)):
            return
        launches, lifetime = (self.launch_of(last), self.launch_of(command)), (block.born, block.site)
        waited = self._find_waiter(last, command[0])
        race = build_race(old, before, last, cell, kind, command, launches, waited, lifetime, self.select)
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
        """Report two conflicting accesses, one of which selects its elements by indices; see Note [Deferred
        decisions].
        """
        if seen.by_chance:
            self._met_by_chance(last, (command[3], command[4]))
            return
        born = seen.candidate.born
        if last[1] < born and cell.block.reported == born:
            return
        if last[1] < born and old.polled.get(last[0], 0) >= last[1]:
            self.findings.reuses_polled += 1
            return
        key = _key(cell.block, born, last, command)
        if not self.findings.is_known(key, before, kind, command[1], (last[0].handle, command[0].handle)):
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
        lifetime, waited = (seen.candidate.born, seen.candidate.site), self._find_waiter(last, command[0])
        race = build_race(
            old, before, last, cell, kind, command, seen.launches, waited, lifetime, self.select
        )
        race.note = " ".join([*([race.note] if race.note else []), *dict.fromkeys(seen.notes)])
        if seen.span is not None:
            race.meeting = seen.span
        return race

    def _undecided_races(self) -> dict[Key, Race]:
        """Return the candidates that count as races until the commands that select elements by indices have
        run.
        """
        found: dict[Key, Race] = {}
        for c, seen in self.deferred.iterate_undecided():
            key = _key(c.cell.block, c.born, c.last, c.command)
            if not seen.by_chance and key not in found:
                found[key] = self._race_of(c.old, c.before, c.last, c.cell, c.kind, c.command, seen)
        return found

    def _report(self, key: Key, race: Race, late: bool = False) -> None:
        if self.findings.mode == "error":
            if late:
                self.running = 0  # the next call enters through `enter`, which raises the race
            else:
                self.deferred.fresh.clear()  # the second command is not enqueued
        self.findings.report(key, race, late)

    @property
    def is_launching(self) -> bool:
        """Return True if commands may belong to the launch of a graph."""
        return bool(self._launches)

    def launch_of(self, command: Command) -> GraphLaunch | None:
        """Return the graph launch that a command belongs to; None if there is none or the graph was launched
        again since.
        """
        return next((launch for launch in self._launches.values() if launch.has(command)), None)

    def _find_waiter(self, last: Command, later: LogicalThread) -> LogicalThread | None:
        """Return another stream of the program that has waited for a process group's command; None if there is
        none.
        """
        if last[0].grouped:
            for agent in self._on_device[last[0].device]:
                wait = agent.waits.get(last[0])
                if wait is not None and wait[0] >= last[1] and agent is not later and not agent.grouped:
                    return agent
        return None

    def _met_by_chance(self, first: Command, second: Site) -> None:
        what = f"memory that {first[2][0]} uses at {place((first[3], first[4]))} is used again"
        self.findings.threads_unordered(what, second)


def _key(block: ShadowBlock, born: int, last: Command, command: Command) -> Key:
    """Return the key under which races of two call sites are one report."""
    record = last[1] < born and last[0] is not block.agent
    lines = *line_at((last[3], last[4])), *line_at((command[3], command[4]))
    return *lines, record, last[0].device, command[0].device
