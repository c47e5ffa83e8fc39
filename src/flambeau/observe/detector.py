"""The race detector: it finds conflicting accesses to one piece of memory that nothing orders.

It owns all race clocks. See Note [Clocks] and Note [Cells]; docs/determinism.md explains the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from flambeau.core.callsite import Site, caller, place
from flambeau.observe.accesses import (
    Cell,
    Command,
    Footprint,
    FreedUse,
    ShadowBlock,
    clear_covered,
)
from flambeau.observe.clocks import NOTHING, Clock, LogicalThread, Reached
from flambeau.observe.graph_launches import GraphLaunches
from flambeau.observe.indexed.candidates import Circumstances
from flambeau.observe.indexed.deferred import Deferred
from flambeau.observe.indexed.partial import Operand, PartialAccess
from flambeau.observe.lifetimes import Lifetimes
from flambeau.observe.pinned.host_accesses import HostAccesses
from flambeau.observe.pinned.pinned_accesses import PinnedMemory
from flambeau.observe.race_builder import (
    READ,
    READ_WRITE,
    WRITE,
    build_race,
    line_at,
)
from flambeau.observe.race_findings import Findings, Key
from flambeau.observe.reporting.fixes import Select
from flambeau.observe.reports import Certificate, Race

Check: TypeAlias = Callable[..., Any]
"""A function `check(stream, ptrs, site=None, depth=3)` for commands; see `Detector.check_of`."""


class Detector(Lifetimes):
    """The race detector of one machine.

    `mode` is "warn" (collect races) or "error" (raise RaceError at the second access).

    Attributes:
        deferred: Accesses to elements that indices select, which are decided when the commands have run.
        graphs: Captured commands and the launches of their graphs.
        host: Accesses of the host to memory that commands use.
        pinned: Views of pinned memory, through which the host may access it unseen.
        before_certificate: Called before a certificate is returned.
        select: Returns the expressions of current streams, for fixes; None if they are unknown.
    """

    __slots__ = (
        "_check_written", "before_certificate", "deferred", "graphs", "host", "pinned", "select",
    )  # fmt: skip

    def __init__(self, mode: str = "warn", strict: bool = False) -> None:
        super().__init__(Findings(mode, strict))
        self.graphs = GraphLaunches(self, self._next)
        self.host = HostAccesses(self)
        self.pinned = PinnedMemory(self)
        self.deferred = Deferred(self)
        self._check_written = self.deferred.unwritten.read
        self.before_certificate: Callable[[Detector], None] = lambda detector: None
        self.select: Select | None = None

    # -- answers --------------------------------------------------------------------------------------
    @property
    def races(self) -> list[Race]:
        """Return the races found, one for each pair of call sites, in the order of their discovery."""
        self.settle()
        return self.findings.races

    def certificate(self) -> Certificate:
        """Return the certificate of this run. Its races count as shown to the user from now on."""
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
        """Process the accessed elements that executed commands have reported."""
        if self.deferred.executed:
            with self.lock:
                self.deferred.settle()

    # -- streams and waits ------------------------------------------------------------------------------
    def host_waited(self, points: Sequence[Reached | None]) -> None:
        before = self.known
        super().host_waited(points)
        if self.known is not before and self.host.cells:
            self.host.settle()
        if self.deferred.executed:
            self.deferred.settle()
        self.pinned.host_waited()
        self.findings.raise_due()

    def forget(self, ptr: int, nbytes: int) -> None:
        """Drop memory that was returned to the driver, after a wait for all its uses."""
        self.host.forget(ptr, nbytes)
        self.pinned.on_unpin(ptr, nbytes)
        super().forget(ptr, nbytes)

    # -- accesses --------------------------------------------------------------------------------------
    def check_of(self, footprint: Footprint) -> Check:
        """Return a function that checks the commands with one footprint: `check(stream, ptrs, site, depth)`.

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
            # `_keep_sole`, written inline because this is the most frequent case.
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
        """Return a function that checks commands of which indices select the elements of one operand."""
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
            else:
                self._keep_sole(writers, readers, command)
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
        """Check a command whose cells other streams have used too, and its access to elements that indices select."""
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
        """Update which stream is the only user of these cells, after a stream has used them."""
        for cell in cells:
            cell.settle(agent)
            if cell.block.agent is not agent:
                cell.block.shared = cell.block.born

    def _keep(self, writers: list[Cell], readers: list[Cell], command: Command) -> None:
        """Store the command as the last one that read and wrote these cells."""
        agent = command[0]
        for cell in readers:
            last = cell.write
            if last is None or last[1] < cell.block.born:
                self._check_written(cell, command, cell in writers)
            cell.add_read(command, agent.clock)
        for cell in writers:
            cell.set_write(command)
            clear_covered(cell, agent.clock, agent)

    def _keep_sole(self, writers: list[Cell], readers: list[Cell], command: Command) -> None:
        """Store a command as the last access of cells that only its own stream has used since their last write."""
        agent = command[0]
        for cell in readers:
            last = cell.write
            if last is None or last[1] < cell.block.born:
                self._check_written(cell, command, cell in writers)
            cell.read = command
        for cell in writers:
            cell.write = command
            cell.read = None
            if cell.block.site is None:
                cell.block.place((command[3], command[4]))
            if cell.neighbours:
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
        """Compare a write with the last accesses of one shadow cell."""
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
        """Report a write to memory if a use of freed memory may still access the same bytes."""
        last, agent, block = use.command, command[0], cell.block
        if self.several and max(agent.loose.get(use.agent, 0), self.everyone.get(use.agent, 0)) >= use.number:
            self.met_by_chance(last, (command[3], command[4]))
            return
        block.reported = block.born
        owner = block.agent
        record = owner is not None and owner.clock.get(use.agent, 0) < use.number and last[0] is not owner
        second = use.freed_at if record and use.freed_at else (command[3], command[4])
        key = ("freed", *line_at((last[3], last[4])), *line_at(second), record, last[0].device, agent.device)
        if self.findings.is_known(key, use.kind, WRITE, command[1]):
            return
        launches, lifetime = (
            (self.graphs.launch_of(last), self.graphs.launch_of(command)),
            (block.born, block.site),
        )
        waited = self._find_waiter(last, agent)
        race = build_race(
            use, use.kind, last, cell, WRITE, command, launches, waited, lifetime, self.select, record
        )
        self._report(key, race)

    # -- findings --------------------------------------------------------------------------------------
    def _conflict(
        self, old: Cell, before: str, last: Command, cell: Cell, kind: str, command: Command
    ) -> None:
        """Report two conflicting accesses if their clocks do not order them."""
        block = cell.block
        if self.several and max(command[0].loose.get(last[0], 0), self.everyone.get(last[0], 0)) >= last[1]:
            # memory of an earlier lifetime was placed here because the allocator knew of the wait
            if last[1] >= block.born:
                self.met_by_chance(last, (command[3], command[4]))
            return
        if last[1] < block.born and block.reported == block.born:
            return  # the reuse was reported, in a form that does not depend on where the allocator placed the memory
        if last[1] < block.born and old.polled.get(last[0], 0) >= last[1]:
            self.findings.reuses_polled += 1
            return
        key = _key(block, block.born, last, command)
        if self.findings.is_known(key, before, kind, command[1], (last[0].handle, command[0].handle)):
            return
        launches, lifetime = (
            (self.graphs.launch_of(last), self.graphs.launch_of(command)),
            (block.born, block.site),
        )
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
        """Report a conflict in which indices select the elements of one access; see Note [Deferred decisions]."""
        born = seen.candidate.born
        if seen.by_chance:
            if last[1] >= born:
                self.met_by_chance(last, (command[3], command[4]))
            return
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
        """Return the race report of a candidate."""
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
                self.running = 0  # so that the next call runs `enter`, which raises the error
            else:
                self.deferred.fresh.clear()  # the second command is not enqueued
        self.findings.report(key, race, late)

    def _find_waiter(self, last: Command, later: LogicalThread) -> LogicalThread | None:
        """Return another stream of the program that has waited for a process group's command; None if there is none."""
        if last[0].grouped:
            for agent in self._on_device[last[0].device]:
                wait = agent.waits.get(last[0])
                if wait is not None and wait[0] >= last[1] and agent is not later and not agent.grouped:
                    return agent
        return None

    def met_by_chance(self, first: Command, second: Site) -> None:
        """Record that only the scheduling of host threads, which may differ in the next run, orders two accesses."""
        what = f"memory that {first[2][0]} uses at {place((first[3], first[4]))} is used again"
        self.findings.threads_unordered(what, second)


def _key(block: ShadowBlock, born: int, last: Command, command: Command) -> Key:
    """Return the key that repeated races of two call sites share."""
    record = last[1] < born and last[0] is not block.agent
    lines = *line_at((last[3], last[4])), *line_at((command[3], command[4]))
    return *lines, record, last[0].device, command[0].device
