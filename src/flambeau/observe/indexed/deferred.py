"""Deferred decisions: whether accesses overlap whose elements are selected by indices.

# Note [Deferred decisions] Problem: The detector decides when a command is enqueued. The elements that an
`index_put_` or a `gather` touches depend on device memory, and are known when the command runs.

Rule: Such an access is kept as a `PartialAccess` of its whole operand. A possible conflict with an
unordered access becomes a `Candidate`. When the kernel runs, it reports copies of its indices. When all
accesses of a candidate have run, it is decided: it is a race if the elements overlap.

Why this is exact: Commands run in a legal order. When the later of two unordered accesses is decided, no
access that happens after both is in the map. Accesses that have run wait in `executed` in their order,
because kernels run in any waiting thread, which must not take the detector's lock. The next call that has
the lock processes them.

A partial access supersedes nothing, because it covers only a part. All accesses of a logical thread are
kept, unit by unit, in the `PlaceMap` of the block. docs/determinism.md explains why the indices of one run
hold for every schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from flambeau.core.host_arrays import compact_copy
from flambeau.observe.accesses import Cell, Command
from flambeau.observe.indexed.candidates import Candidate, Circumstances
from flambeau.observe.indexed.partial import (
    ALONE,
    MANY_STREAMS,
    NO_OWNER,
    NOT_RUN,
    TOO_LARGE,
    Array,
    LastPartial,
    Operand,
    PartialAccess,
)
from flambeau.observe.indexed.place_map import PlaceMap
from flambeau.observe.indexed.unwritten import PendingRead, UnwrittenReads
from flambeau.observe.layout_overlap import overlap
from flambeau.observe.race_builder import READ, WRITE

if TYPE_CHECKING:
    from flambeau.observe.detector import Detector

_COPIED = 1 << 26  # bytes of copied indices that wait for the detector
_AGENTS = 64  # logical threads whose partial accesses a cell keeps separately


Meeting: TypeAlias = tuple[PartialAccess, tuple[str, ...], tuple[int, int] | None]
"""An access that another one overlaps, notes for the report, and the addresses of the overlap, if known."""


class Deferred:
    """The deferred decisions of one detector, whose lock callers hold, except for `ran`.

    Attributes:
        unseen: The reason why no access reports its indices on this machine; empty if they do.
        executed: Accesses that have run and were not processed yet, in the order in which they ran, with
            copies of their indices or the reason why there are none.
        fresh: The candidates of the command that is being checked.
        alone: The last access that ran while only one stream was in use; until then none was kept.
        open: The candidates that are not decided.
        asked: The reads whose checks for unwritten memory are not decided.
    """

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.unseen = ""
        self.executed: deque[tuple[PartialAccess, list[Array] | None, str]] = deque()
        self.fresh: list[Candidate] = []
        self.alone: PartialAccess | None = None
        self.open: dict[Candidate, None] = {}
        self.asked: dict[PendingRead, None] = {}
        self.unwritten = UnwrittenReads(detector.findings, self)
        self._copied = 0
        self._maps: WeakSet[PlaceMap] = WeakSet()

    # -- a command is enqueued ----------------------------------------------------------------------------------
    def access(self, cell: Cell, command: Command, operand: Operand) -> PartialAccess:
        """Return the access of a command that is about to be enqueued."""
        block = cell.block
        places = block.places
        if places is None or places.born != block.born or places.end != block.end:
            places = block.places = PlaceMap(block.start, block.end, block.born, self._maps)
            self._maps.add(places)
        access = PartialAccess(cell, command, operand, places)
        if operand.touches.rewrites:
            access.entire = True
        if self.unseen:
            access.give_up(self.unseen)
            access.pending = False
        elif cell.start < block.start or cell.end > block.end:
            access.give_up(NO_OWNER)
        if self.detector.graphs.launches:
            access.launch = self.detector.graphs.launch_of(command)
        return access

    def check(self, access: PartialAccess) -> None:
        """Compare an access with everything that is not ordered before it.

        Raises:
            RaceError: In mode "error", if it races.
        """
        agent, cell = access.agent, access.cell
        clock = agent.clock
        for old in (cell, *cell.neighbours):
            last = old.write
            if last is not None and last[0] is not agent and clock.get(last[0], 0) < last[1]:
                self._against_whole(access, old, WRITE, last)
            for last in old.all_reads() if access.writes else ():
                if last[0] is not agent and clock.get(last[0], 0) < last[1]:
                    self._against_whole(access, old, READ, last)
            if old.partial is not None:
                kind = WRITE if access.writes else READ
                self.against(old, cell, kind, access.command, access)

    def _against_whole(self, access: PartialAccess, old: Cell, before: str, last: Command) -> None:
        kind = WRITE if access.writes else READ
        candidate = self._candidate(old, before, last, None, access.cell, kind, access.command, access)
        # in an earlier lifetime the memory was another tensor's, so the selected elements do not matter
        if last[1] < access.born:
            self._report(candidate, access)
        elif access.is_open:
            self.fresh.append(candidate)
        else:
            self._decide(candidate)

    def against(
        self, old: Cell, cell: Cell, kind: str, command: Command, access: PartialAccess | None = None
    ) -> None:
        """Compare a command, or its partial `access`, with the partial accesses to its cell or to a neighbouring
        cell.
        """
        assert old.partial is not None
        if self.executed:
            self.settle()
        agent, born = command[0], cell.block.born
        for other, last in old.partial.items():
            if other is agent:
                continue
            time = agent.clock.get(other, 0)
            if last.number <= time:
                continue
            for first in last.conflicting(kind is WRITE):
                if first.number <= time:
                    continue
                before = WRITE if first.writes else READ
                candidate = self._candidate(
                    old, before, first.command, first, cell, kind, command, access, time
                )
                if self.alone is not None and self.alone.agent is other and time < self.alone.number:
                    candidate.not_kept = last.not_kept(self.alone.number)
                if first.born < born:
                    self._report(candidate, first)
                elif first.is_open or (access is not None and access.is_open):
                    self.fresh.append(candidate)
                else:
                    self._decide(candidate)

    def _candidate(
        self,
        old: Cell,
        before: str,
        last: Command,
        first: PartialAccess | None,
        cell: Cell,
        kind: str,
        command: Command,
        second: PartialAccess | None,
        above: int = 0,
    ) -> Candidate:
        detector, agent = self.detector, last[0] if first is None else first.agent
        doubtful = 0
        if detector.several:
            doubtful = max(command[0].loose.get(agent, 0), detector.everyone.get(agent, 0))
        found = Candidate(old, before, last, first, cell, kind, command, second, above, doubtful)
        earlier = detector.graphs.launch_of(last) if first is None else first.launch
        found.launches = earlier, detector.graphs.launch_of(command)
        return found

    def keep_fresh(self) -> None:
        """Store the candidates of an enqueued command until they are decided."""
        fresh, self.fresh = self.fresh, []
        for candidate in fresh:
            first, second = candidate.first, candidate.second
            awaited = second if second is not None and second.is_open else first
            assert awaited is not None
            awaited.candidates = [*awaited.candidates, candidate]
            awaited.is_awaited = True
            if second is not None:
                second.held += 1
            self.open[candidate] = None

    def keep(self, access: PartialAccess) -> None:
        """Store the access of an enqueued command, for comparison with later ones."""
        cell = access.cell
        if access.writes and cell.block.site is None:
            cell.block.place((access.command[3], access.command[4]))
        if cell.partial is None:
            cell.partial = {}
        last = cell.partial.get(access.agent)
        if last is None:
            last = cell.partial[access.agent] = LastPartial()
        last.add(access, not self.detector.concurrent)
        if access.entire:
            self._add_entire(access)
        if access.defines:
            access.map.defines = True
            if not access.pending:
                self.unwritten.not_known(access)
            else:
                access.map.defining[access] = None
        if len(cell.partial) > _AGENTS:
            self._fold(cell, access)

    def _add_entire(self, access: PartialAccess) -> None:
        access.map.add_entire(access)
        if len(access.map.entire) > access.map.most_entire:
            access.map.drop_entire(lambda old: self.detector.all_know(old.agent, old.number))

    def _fold(self, cell: Cell, access: PartialAccess) -> None:
        """Merge the partial accesses that are ordered before this one into one read and one write of this logical
        thread.
        """
        assert cell.partial is not None
        clock, mine = access.agent.clock, cell.partial[access.agent]
        for agent, last in list(cell.partial.items()):
            if last is mine or last.number > clock.get(agent, 0):
                continue
            del cell.partial[agent]
            for old in last.all():
                if not self.detector.all_know(agent, old.number):
                    mine.fold(old.counted_as(access, MANY_STREAMS))
            users = [c for c in cell.block.cells if c.partial is not None and agent in c.partial]
            if not users:
                access.map.forget(agent)
        for folded in mine.folded:
            self._add_entire(folded)

    def ask(self, question: PendingRead) -> None:
        """Decide a read of possibly unwritten memory when all accesses that write elements of its memory have run."""
        if self.executed:
            self.settle()
        for access in question.places.defining:
            access.questions = [*access.questions, question]
            access.is_awaited = True
            question.waits += 1
        if question.waits:
            self.asked[question] = None
        else:
            self.unwritten.answer(question)

    # -- a command runs -----------------------------------------------------------------------------------------
    def ran(self, access: PartialAccess, indices: list[Array]) -> None:
        """Store the indices of an access that is about to run. The caller does not hold the detector's lock."""
        if not (self.detector.concurrent or access.is_awaited):  # usually there is nothing to store
            access.pending, self.alone = False, access
            if self.detector.concurrent:  # another thread has changed this meanwhile
                access.pending = True
                self.executed.append((access, None, ALONE))
            return
        if self._copied > _COPIED and self.detector.lock.acquire(blocking=False):
            try:
                self.settle()
            finally:
                self.detector.lock.release()
        if self._copied > _COPIED:
            self.executed.append((access, None, TOO_LARGE))
            return
        copies = [compact_copy(index) for index in indices]
        for copy in copies:
            self._copied += copy.nbytes
        self.executed.append((access, copies, ""))

    def settle(self) -> None:
        """Process the accesses that have run, and decide the candidates and reads that waited for them."""
        detector, executed = self.detector, self.executed
        while executed:
            access, copies, why = executed.popleft()
            for copy in copies or ():
                self._copied -= copy.nbytes
            awaited, known = access.is_awaited, detector.all_know(access.agent, access.number)
            if known and not awaited and not self.open:
                access.pending = False  # no later access can conflict with it
            elif access.pending:
                access.pending = False
                self._take_up(access, copies, why)

    def _take_up(self, access: PartialAccess, copies: list[Array] | None, why: str) -> None:
        access.map.defining.pop(access, None)
        access.indices = copies
        if access.asks is not None:  # decide its question first, because its own writes are added next
            self.unwritten.places_read(access, access.asks)
        if copies is not None:
            access.map.add(access)
        else:
            if not access.entire:
                access.give_up(why)
                self._add_entire(access)
            if access.defines:
                access.why = why
                self.unwritten.not_known(access)
        self._go_on(access)

    def cancel(self, access: PartialAccess) -> None:
        """Drop the access of a command that was not enqueued."""
        access.pending = False
        access.map.defining.pop(access, None)
        self._go_on(access)

    def _go_on(self, access: PartialAccess) -> None:
        """Decide what waited for the access. A candidate whose other access has not run waits for that one."""
        questions, access.questions = access.questions, ()
        for question in questions:
            question.waits -= 1
            if not question.waits:
                del self.asked[question]
                self.unwritten.answer(question)
        candidates, access.candidates = access.candidates, ()
        for candidate in candidates:
            first, second = candidate.first, candidate.second
            other = first if access is second else second
            if other is not None and other.is_open:
                other.candidates = [*other.candidates, candidate]
                other.is_awaited = True
                continue
            del self.open[candidate]
            self._decide(candidate, late=True)
            if second is not None:
                second.let_go()

    # -- decisions ----------------------------------------------------------------------------------------------
    def _decide(self, candidate: Candidate, late: bool = False) -> None:
        """Report a race if the accesses overlap.

        Raises:
            RaceError: In mode "error", unless `late`.
        """
        found = self._with_whole if candidate.first is None else self._with_partial
        for access, notes, span in list(found(candidate)):
            self._report(candidate, access, notes, span, late)

    def _with_whole(self, candidate: Candidate) -> Iterator[Meeting]:
        """Yield the second access, a partial one, if it overlaps the first access, which touches its whole cell."""
        second, old = candidate.second, candidate.old
        assert second is not None
        places = second.map
        places.draw()
        if second.entire:
            yield second, (second.note,), None
        elif places.last:
            region = places.within(old.start, old.extent)
            for access, *span in places.conflicts(second.agent, second.number - 1, region, reads=True):
                if access is second:
                    yield access, (), (span[0], span[1])

    def _with_partial(self, candidate: Candidate) -> Iterator[Meeting]:
        """Yield the first logical thread's partial accesses that the second access overlaps."""
        first, second, cell = candidate.first, candidate.second, candidate.cell
        assert first is not None
        places, writes = first.map, candidate.kind is WRITE
        places.draw()
        exact = second if second is not None and not second.entire and second.map is places else None
        notes = (
            () if second is None or exact else (second.note if second.entire else second.note_of(NO_OWNER),)
        )

        if places.last:
            whole = places.within(cell.start, cell.extent) if exact is None else places.region(exact)
            for access, *span in places.conflicts(first.agent, candidate.above, whole, writes):
                if access.number <= first.number:
                    yield access, notes, (span[0], span[1])
        for access, note in self._entire(candidate, first):
            start, extent = access.cell.start, access.cell.extent
            if not (access.writes or writes) or not overlap(start, extent, cell.start, cell.extent):
                continue
            if exact is None or places.meets(exact, start, extent):
                yield access, (note, *notes), None

    def _entire(self, candidate: Candidate, first: PartialAccess) -> list[tuple[PartialAccess, str]]:
        """Return the first logical thread's accesses that count as touching their whole cells, with the reasons."""
        above, agent = candidate.above, first.agent
        found = [
            (access, access.note)
            for access in first.map.entire.values()
            if access.agent is agent and above < access.number <= first.number
        ]
        return found + [(access, access.note_of(ALONE)) for access in candidate.not_kept]

    def _report(
        self,
        candidate: Candidate,
        access: PartialAccess,
        notes: tuple[str, ...] = (),
        span: tuple[int, int] | None = None,
        late: bool = False,
    ) -> None:
        """Report the race of a candidate. `access` is its first access if that is a partial one."""
        old, last, befores, number = candidate.old, candidate.last, [candidate.before], candidate.last[1]
        launches, second = candidate.launches, candidate.second
        if candidate.first is not None:
            old, last, befores, number = access.cell, access.command, access.kinds, access.number
            launches = access.launch, launches[1]
        circumstances = Circumstances(
            candidate, launches, number <= candidate.doubtful, tuple(filter(None, notes)), span, late
        )
        for before in befores:
            for kind in [candidate.kind] if second is None else second.kinds:
                if before is WRITE or kind is WRITE:
                    self.detector.conflict(
                        old, before, last, candidate.cell, kind, candidate.command, circumstances
                    )

    def iterate_undecided(self) -> Iterator[tuple[Candidate, Circumstances]]:
        """Yield the candidates of accesses that have not run, which count as races, with the reasons."""
        for candidate in self.open:
            both = (candidate.first, candidate.second)
            notes = [access.note_of(NOT_RUN) for access in both if access is not None and access.is_open]
            number = candidate.last[1] if candidate.first is None else candidate.first.number
            yield (
                candidate,
                Circumstances(
                    candidate, candidate.launches, number <= candidate.doubtful, tuple(notes), None, True
                ),
            )
