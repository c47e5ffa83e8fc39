"""Partial accesses: one command's access to the elements of a cell that its indices select."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau.core.callsite import place
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Touches

if TYPE_CHECKING:
    from flambeau.observe.accesses import Cell, Command
    from flambeau.observe.indexed.candidates import Candidate
    from flambeau.observe.indexed.deferred import Deferred
    from flambeau.observe.indexed.place_map import PlaceMap
    from flambeau.observe.indexed.unwritten import PendingRead
    from flambeau.observe.layout_overlap import Extent
    from flambeau.observe.race_builder import GraphLaunch

Array = np.ndarray[Any, Any]

READ, WRITE = "reads", "writes"

# The reasons why an access counts as touching its whole operand. They complete "counted as touching all of
# ...: ".
NOT_READ = "a real GPU's indices are not read"
NO_DATA = "virtual GPUs without data have no indices"
ALONE = "it ran before a second stream was in use"
TOO_LARGE = "its indices, or the tensor, are too large to keep places apart"
NOT_RUN = "it has not run yet"
NESTED = "it is in a graph that another graph launches"
MANY_STREAMS = "more streams use the tensor than are kept apart"
NO_OWNER = "the memory has no one owner"


class Operand:
    """The operand of a kernel of which indices select the accessed elements.

    Attributes:
        meta: Its layout.
        writes, reads: The kernel's access to the elements. `kinds` says the same for reports.
    """

    __slots__ = ("deferred", "kinds", "meta", "reads", "touches", "writes")

    def __init__(self, meta: Meta, touches: Touches, deferred: Deferred) -> None:
        self.meta, self.touches, self.deferred = meta, touches, deferred
        self.writes = touches.target
        self.reads = touches.reads or not touches.target or touches.rewrites
        self.kinds = [*([WRITE] if self.writes else []), *([READ] if self.reads else [])]


class PartialAccess:
    """One command's access to the elements of a cell that its indices select.

    Its kernel calls `report` just before it runs. Until then the access is `pending`.

    Attributes:
        number: The number of the command. An access that stands for another logical thread has that one's
            number.
        born: The number at which the lifetime of the memory began.
        site: The call site of the allocation.
        indices: Copies of the index operands at the time of the command; None before it ran, and once they
            are in the map.
        entire: True if it counts as touching the whole cell. `why` is the reason; empty if it really does.
        is_awaited: True if a decision depends on its indices for certain.
        defines: True if the elements count as written afterwards, for memory that is not written as a
            whole.
        asks: For a read of memory that is only partly written: the parts that were written as a whole; else
            None.
        candidates, questions: The decisions that wait for its indices.
        held: The number of candidates that need `indices` after it was added to the map.
    """

    # Few accesses set these: one access is created for each launch of an indexed kernel.
    launch: GraphLaunch | None = None
    indices: list[Array] | None = None
    entire = False
    why = ""
    pending = True
    is_awaited = False
    defines = False
    asks: list[tuple[int, Extent]] | None = None
    candidates: Sequence[Candidate] = ()
    questions: Sequence[PendingRead] = ()
    held = 0
    is_drawn = False

    def __init__(self, cell: Cell, command: Command, operand: Operand, place_map: PlaceMap) -> None:
        self.cell = cell
        self.command = command
        self.agent = command[0]
        self.number = command[1]
        self.operand = operand
        self.writes = operand.writes
        self.map = place_map
        block = cell.block
        self.born, self.site = block.born, block.site

    @property
    def is_open(self) -> bool:
        """Return True if conflicts with it depend on indices that are not known yet."""
        return self.pending and not self.entire

    @property
    def kinds(self) -> list[str]:
        return self.operand.kinds

    def counted_as(self, later: PartialAccess, why: str) -> PartialAccess:
        """Return a copy of the access that counts as one to the whole cell, at the position of a later command."""
        alias = PartialAccess(self.cell, self.command, self.operand, self.map)
        alias.agent, alias.number, alias.born, alias.site = later.agent, later.number, self.born, self.site
        alias.launch, alias.pending = self.launch, False
        alias.give_up(why)
        return alias

    def report(self, inputs: Sequence[Any]) -> None:
        """Store the indices, which are among the kernel's inputs. The caller does not hold the detector's lock."""
        operand = self.operand
        operand.deferred.ran(self, [inputs[i] for i in operand.touches.indices])

    def cancel(self) -> None:
        """Drop the access of a command that was not enqueued."""
        self.operand.deferred.cancel(self)

    def give_up(self, why: str) -> None:
        """Treat the access as one to the whole cell from now on, for the reason `why`."""
        self.entire, self.why, self.indices = True, why, None

    def finish_map(self) -> None:
        """Record that the map now contains the access's elements."""
        self.is_drawn = True
        if not self.held:
            self.indices = None

    def let_go(self) -> None:
        """Drop one candidate's claim to the indices. They are released with the last claim."""
        self.held -= 1
        if self.is_drawn and not self.held:
            self.indices = None

    @property
    def note(self) -> str:
        """Return a note for the report if the access counts as touching more elements than it may."""
        return self.note_of(self.why) if self.why else ""

    def note_of(self, why: str) -> str:
        meta, name = self.operand.meta, self.command[2][0]
        at = place((self.command[3], self.command[4]))
        return (
            f"note:   {name} at {at} is counted as touching all of {list(meta.shape)} {meta.dtype!r}: {why}."
        )


class LastPartial:
    """One logical thread's last accesses to selected elements of a cell.

    Attributes:
        number: The greatest of their numbers.
        read, write: The last ones in the latest lifetime of the memory.
        former: The last read and the last write before that.
        folded: Accesses of other logical threads that count as this one's: at most one read and one write.
        early: True if they write -> the first and the last access while only one stream was in use.
    """

    __slots__ = ("early", "folded", "former", "number", "read", "write")

    def __init__(self) -> None:
        self.number = 0
        self.read: PartialAccess | None = None
        self.write: PartialAccess | None = None
        self.former: list[PartialAccess] = []
        self.folded: list[PartialAccess] = []
        self.early: dict[bool, tuple[PartialAccess, PartialAccess]] = {}

    def add(self, access: PartialAccess, early: bool) -> None:
        """Store an access in place of the previous one. Accesses in earlier lifetimes of the memory are stored
        separately.
        """
        last = self.write or self.read
        if last is not None and last.born < access.born:
            self._end_lifetime()
        if early:
            first, _ = self.early.get(access.writes, (access, None))
            self.early[access.writes] = first, access
        if access.writes:
            self.write = access
        else:
            self.read = access
        self.number = access.number

    def _end_lifetime(self) -> None:
        """Store the last read and write of the ended lifetime as former ones."""
        latest = {old.writes: old for old in sorted(self.all(), key=lambda old: old.number)}
        self.former = list(latest.values())
        self.read = self.write = None
        self.folded, self.early = [], {}

    def fold(self, access: PartialAccess) -> None:
        """Store another logical thread's access as one of this logical thread."""
        self.folded = [*[old for old in self.folded if old.writes is not access.writes], access]

    def not_kept(self, alone: int) -> list[PartialAccess]:
        """Return the accesses that represent the early ones up to the number `alone`, if there were any."""
        found = [last if last.number <= alone else first for first, last in self.early.values()]
        return [access for access in found if access.number <= alone and not access.entire]

    def all(self) -> list[PartialAccess]:
        return [*self.former, *self.folded, *[last for last in (self.read, self.write) if last is not None]]

    def conflicting(self, writes: bool) -> list[PartialAccess]:
        """Return the accesses that represent all that may conflict with a write if `writes`, otherwise with a read.

        The last of `read` and `write` represents both: earlier accesses of its logical thread have run when
        it has.
        """
        read, write = self.read if writes else None, self.write
        latest = read if write is None or (read is not None and read.number > write.number) else write
        rest = [old for old in (*self.former, *self.folded) if old.writes or writes]
        return rest if latest is None else [*rest, latest]

    def drop(self, is_over: Callable[[PartialAccess], bool]) -> None:
        """Drop the accesses that no later access can conflict with."""
        self.former = [old for old in self.former if not is_over(old)]
        self.folded = [old for old in self.folded if not is_over(old)]
        self.read = None if self.read is None or is_over(self.read) else self.read
        self.write = None if self.write is None or is_over(self.write) else self.write


class Probe:
    """The receiver of a captured kernel's indices. Each launch of its graph provides the indices of another access.

    Launches of one graph run one after the other, so accesses are reported in the order in which they were
    added.
    """

    __slots__ = ("accesses", "nested")

    def __init__(self) -> None:
        self.accesses: list[PartialAccess] = []
        self.nested = False  # True if another graph launches the kernel, too, in an unknown order

    def add(self, access: PartialAccess | None) -> None:
        if access is not None:
            self.accesses.append(access)

    def report(self, inputs: Sequence[Any]) -> None:
        if self.accesses:
            access = self.accesses.pop(0)
            if self.nested:
                access.operand.deferred.executed.append((access, None, NESTED))
            else:
                access.report(inputs)

    def cancel(self, begin: int = 0) -> None:
        """Drop the accesses of commands with numbers above `begin`, because their launch failed."""
        for access in [access for access in self.accesses if access.number > begin]:
            self.accesses.remove(access)
            access.cancel()
