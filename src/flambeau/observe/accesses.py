"""Shadow memory: the last accesses to each part of device memory and pinned memory.

# Note [Cells] The last accesses are kept per layout. There is one `Cell` for each (address, extent) that
was ever used, and cells that truly share bytes are neighbours. A contiguous extent is its number of bytes,
whatever its shape and dtype, so a tensor, its reshapes and the copy that filled it share a cell. Programs
use few layouts again and again. An access is therefore one dictionary hit, and overlaps are computed once,
exactly, for strided layouts too. Nothing is split: two columns of one matrix are two cells that are not
neighbours.

A cell keeps its last write, and its last read, or the last read of each logical thread if reads are
unordered. That is enough by FastTrack's argument: an access that is ordered after the last write is ordered
after everything that write happened after. If it is not ordered after the last write, it races with that
write.

An access to elements that indices select supersedes none of these. It is kept separately, in
`Cell.partial`; see Note [Deferred decisions].
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Generic, Protocol, TypeAlias, TypeVar

from flambeau.core.callsite import Site
from flambeau.core.meta import Meta
from flambeau.driver.protocol import AUTOCAST, Touches
from flambeau.observe.clocks import NOBODY, NOTHING, Clock, LogicalThread
from flambeau.observe.indexed.partial import LastPartial, PartialAccess
from flambeau.observe.indexed.place_map import PlaceMap
from flambeau.observe.layout_overlap import Extent, covers, is_dense, overlap, span_of

Operation: TypeAlias = tuple[str, tuple[Meta, ...], int]
"""The operation of a command: its name, the metas of its operands, and how many of them it writes."""

Command: TypeAlias = tuple[LogicalThread, int, Operation, CodeType, int, int]
"""A command: logical thread, number, operation, the call site's two fields, and its ordinal in its stream.

It is a plain tuple because one is created per operation.
"""

Key: TypeAlias = tuple[int, Extent]

Found: TypeAlias = "dict[tuple[int, ...], tuple[list[Cell], list[Cell], list[Cell]]]"
"""Addresses of a command -> the cells that it writes, the cells that it reads, and all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """The layouts that a command touches, without addresses. Compared by identity; a loaded kernel has one.

    Attributes:
        extents: The layouts of the operands.
        outputs: The number of operands, from the first, that are written.
        updates: True if the written operands are read as well.
        found: Addresses of earlier commands -> cells; see `Shadow.find`.
        touches: Describes the one operand of which indices select the accessed elements, if there is one.
    """

    what: Operation
    extents: tuple[Extent, ...]
    outputs: int
    updates: bool = False
    touches: Touches | None = None
    found: Found = field(default_factory=dict)

    def partial(self, ptrs: tuple[int, ...]) -> int | None:
        """Return the index of the operand of which indices select the touched elements; None if there is none."""
        touches = self.touches
        if touches is None:
            return None
        if not touches.target:
            return self.outputs
        first = self.outputs  # index of the first input, which is the target of an in-place launch
        in_place = ptrs[0] == ptrs[first] and self.what[1][0] is self.what[1][first]
        return 0 if in_place else None


MANY = 16  # cells of a block that are kept through all lifetimes
_LAYOUTS = 256  # layouts in one lifetime of a block before unused cells are dropped
_LIMIT = 8192  # commands whose cells are kept, which bounds programs that use ever new addresses


class _Ranged(Protocol):
    start: int
    end: int


R = TypeVar("R", bound=_Ranged)


class FreedUse:
    """A use of freed memory that may overlap later allocations of its pool. See Note [Reuse by contract].

    Attributes:
        agent, number: A new use of the memory must happen after this command of this stream. At first it is
            the use itself; for a destroyed stream it is a later command of the stream that the memory was
            allocated on.
        command: The use, which reads or writes (`kind`) the memory from `start` on with the layout
            `extent`.
        is_cast: True if the memory holds a weight's cast, which autocast shares among all streams.
        allocated, freed_at: Call sites of the allocation and the free, if known.
        closed: The number of the owner's last command when the owner was first seen to be ordered after the
            use; 0 if it is not ordered.
    """

    __slots__ = (
        "agent", "allocated", "closed", "command", "extent", "freed_at", "is_cast", "kind", "number",
        "start",
    )  # fmt: skip

    def __init__(
        self, command: Command, kind: str, start: int, extent: Extent, block: ShadowBlock | None = None
    ) -> None:
        self.agent, self.number = command[0], command[1]
        self.command, self.kind, self.start, self.extent = command, kind, start, extent
        self.allocated, self.freed_at = (None, None) if block is None else (block.site, block.freed_at)
        self.is_cast = block is not None and any(
            cell.write is not None and cell.write[2][0] == AUTOCAST and cell.write[1] >= block.born
            for cell in block.cells
        )
        self.closed = 0


Freed: TypeAlias = tuple[int, Command, int, Extent, bool]
"""Freed memory: the number before its free, the last command of its own stream that used it, its address and
layout, and whether only its own stream has used it.
"""


class FreedMemory:
    """The memory that was freed to one pool of one stream. See Note [Reuse by contract] in `lifetimes.py`.

    Attributes:
        agent: The stream that allocates from the pool.
        key: Identifies the pool among those of the stream. UNPOOLED: memory that no allocation gets again.
        frees: The latest frees, in order.
        forgotten: The number of the latest use, by the stream itself, of frees that are no longer listed.
        exposed: The latest use of each other stream, unless every host thread knows it to be done. The list
            is replaced and never changed, because allocations keep it.
        is_open: True if one of these uses is not ordered before the stream's next command.
        blocks: The number of blocks, in use or free.
        allocator: The host thread that allocated last, and the number of messages that it had sent; None if there
            is one thread.
    """

    __slots__ = ("agent", "allocator", "blocks", "exposed", "forgotten", "frees", "is_open", "key")

    def __init__(self, agent: LogicalThread, key: int) -> None:
        self.agent, self.key = agent, key
        self.blocks = 0
        self.allocator: tuple[LogicalThread, int] | None = None
        self.frees: list[Freed] = []
        self.forgotten = 0
        self.exposed: Mapping[LogicalThread, FreedUse] = NO_USES
        self.is_open = False

    def find(self, since: int, before: float) -> Freed | None:
        """Return a free before the number `before` of memory that its own stream used last, after `since`; None if
        there is none.
        """
        for freed in reversed(self.frees):
            if freed[0] <= since:  # so have the uses of this free and of all earlier ones
                return None
            if freed[0] < before and freed[1][1] > since:
                return freed
        return None

    def has_lent(self, since: int, until: int, before: int) -> bool:
        """Return True if another stream may have got memory of the pool that only the pool's own stream had used.

        That is memory freed before the number `before` and used last after `since` and until `until`.
        """
        if since < min(self.forgotten, until):
            return True
        return any(
            freed < before and since < last[1] <= until and alone for freed, last, _, _, alone in self.frees
        )


UNPOOLED = -1
NO_USES: Mapping[LogicalThread, FreedUse] = {}
NO_POOL = FreedMemory(NOBODY, UNPOOLED)
"""The pool of memory that no stream allocates."""


class ShadowBlock:
    """A piece of memory with an owner, through its successive lifetimes.

    Attributes:
        allocator: The `allocator` of its pool when its present lifetime began.
        born: The command number at which its present lifetime began.
        prior: The blocks that lay here when memory was divided otherwise.
        pool: The freed memory of the pool that it is allocated from.
        exposed, clock: The pool's `exposed` when the present lifetime began, and its stream's clock.
        own_use: The stream's last use of memory that was freed before that and that the pool no longer
            lists.
        compared: The streams that were compared with these, in the lifetime that began at `compared_life`.
        reported: The lifetime in which one of them was reported.
        shared: The lifetime in which a stream other than the owner's used it.
    """

    __slots__ = (
        "agent", "allocator", "born", "cells", "clock", "compared", "compared_life", "end", "exposed", "freed",
        "freed_at", "host", "last", "many", "own_use", "places", "pool", "prior", "reported", "shared", "site",
        "start",
    )  # fmt: skip

    def __init__(
        self, start: int, nbytes: int, agent: LogicalThread | None, born: int, site: Site | None
    ) -> None:
        self.start, self.end = start, start + nbytes
        self.agent = agent
        self.born = born
        self.site = site
        self.host = False
        self.freed = 0
        self.freed_at: Site | None = None
        # the former lifetime: call site, number of the free, call site of the free
        self.last: tuple[Site | None, int, Site | None] | None = None
        self.prior: tuple[ShadowBlock, ...] = ()
        self.cells: list[Cell] = []
        self.many = _LAYOUTS
        self.places: PlaceMap | None = None  # map of the last lifetime in which indices selected elements
        self.pool = NO_POOL
        self.allocator: tuple[LogicalThread, int] | None = None
        self.own_use: Freed | None = None
        self.exposed = NO_USES
        self.clock = NOTHING
        self.compared: set[LogicalThread] = set()
        self.compared_life = self.reported = self.shared = 0

    def place(self, site: Site) -> None:
        """Set the call site of a lifetime, which is that of the first command to write the block."""
        if self is not NOWHERE:
            self.site = site

    def enter(self, pool: FreedMemory) -> None:
        """Set the pool that the block belongs to."""
        if self.pool is not NO_POOL:
            self.pool.blocks -= 1
        if pool is not NO_POOL:
            pool.blocks += 1
        self.pool = pool

    def renew(self, agent: LogicalThread | None, born: int, site: Site | None) -> None:
        """Begin another lifetime of the block.

        Args:
            agent: The logical thread that allocated it.
            born: The logical time of the allocation.
            site: The line of the program that allocated it.
        """
        self.last = (self.site, self.freed, self.freed_at)
        self.agent, self.born, self.site = agent, born, site
        self.freed, self.freed_at = 0, None


class Cell:
    """The shadow cell of one address and extent: its last accesses.

    Attributes:
        checked: The lifetime whose contents were checked for unwritten memory.
        sole: The logical thread that made all accesses kept here and in the neighbours; its next access can
            conflict with none. None if there are several.
        polled: What the runtime's polling knew of its uses when a lifetime ended. It orders the next
            lifetime after that one, nothing else.
        partial: The last accesses of each logical thread to elements that indices select.
        assumed: The lifetime in which it counts as written although only such accesses have written it.
    """

    __slots__ = (
        "assumed", "block", "checked", "end", "extent", "found", "neighbours", "partial", "polled", "read", "reads",
        "sole", "start", "write",
    )  # fmt: skip

    def __init__(self, start: int, extent: Extent, block: ShadowBlock) -> None:
        self.start, self.end = start, start + span_of(extent)
        self.extent = extent
        self.block = block
        self.checked = -1
        self.assumed = -1
        self.partial: dict[LogicalThread, LastPartial] | None = None
        # dictionaries of footprints, with keys, that contain this cell
        self.found: list[tuple[Found, tuple[int, ...]]] = []
        self.sole: LogicalThread | None = None
        self.polled: Clock = NOTHING
        self.write: Command | None = None
        self.read: Command | None = None
        # used instead of `read` if several reads are unordered
        self.reads: dict[LogicalThread, Command] | None = None
        self.neighbours: list[Cell] = []

    def only(self, agent: LogicalThread) -> bool:
        """Return True if this logical thread is the last one that is known to have used the cell."""
        write, read = self.write, self.read
        return (
            (write is None or write[0] is agent)
            and (read is None or read[0] is agent)
            and self.reads is None
            and (self.partial is None or (agent in self.partial and len(self.partial) == 1))
        )

    def settle(self, agent: LogicalThread) -> None:
        """Update `sole` after an access of a logical thread."""
        alone = self.only(agent)
        for other in self.neighbours:
            if other.sole is not agent:
                other.sole = None
                alone = alone and other.only(agent)
        self.sole = agent if alone else None

    def all_reads(self) -> Iterable[Command]:
        if self.reads is not None:
            return self.reads.values()
        return () if self.read is None else (self.read,)

    def accesses(self) -> Iterable[Command]:
        whole = self.all_reads() if self.write is None else (self.write, *self.all_reads())
        return whole if self.partial is None else (*whole, *[p.command for p in self.partial_accesses()])

    def partial_accesses(self) -> Iterable[PartialAccess]:
        """Return the accesses to selected elements, each once."""
        return () if self.partial is None else [p for last in self.partial.values() for p in last.all()]

    def writes(self, command: Command) -> bool:
        """Return True if the command is one of the writes that this cell holds, of all or some of its elements."""
        return command is self.write or any(p.writes for p in self.partial_accesses() if p.command is command)

    @property
    def is_written(self) -> bool:
        """Return True if one command has written the whole cell in the present lifetime of its memory."""
        return self.assumed == self.block.born or (
            self.write is not None and self.write[1] >= self.block.born
        )

    def add_read(self, command: Command, clock: Clock) -> None:
        """Keep a read. It replaces the reads that happen before it."""
        agent, last = command[0], self.read
        if self.reads is not None:
            beside = {a: r for a, r in self.reads.items() if a is not agent and clock.get(a, 0) < r[1]}
            if beside:
                self.reads = {**beside, agent: command}
            else:
                self.read, self.reads = command, None
        elif last is None or last[0] is agent or clock.get(last[0], 0) >= last[1]:
            self.read = command
        else:
            self.reads = {last[0]: last, agent: command}
            self.read = None

    def drop_polled(self) -> None:
        """Drop the accesses that completed before the next lifetime, as the runtime's polling has shown."""
        polled = self.polled
        if not polled:
            return
        if self.write is not None and polled.get(self.write[0], 0) >= self.write[1]:
            self.write = None
        reads = {r[0]: r for r in self.all_reads() if polled.get(r[0], 0) < r[1]}
        self.read, self.reads = None, reads or None
        for last in list((self.partial or {}).values()):
            last.drop(lambda access: polled.get(access.agent, 0) >= access.number)

    def set_write(self, command: Command | None) -> None:
        """Store a write and drop the other accesses: they are ordered before it, or their races are reported."""
        self.write = command
        self.read = self.reads = self.partial = None


class RangeIndex(Generic[R]):
    """An index of byte ranges by overlap. It is divided by size class, so one large range does not slow it
    down.
    """

    def __init__(self) -> None:
        self._classes: dict[int, tuple[list[int], list[R]]] = {}

    def add(self, item: R) -> None:
        starts, items = self._classes.setdefault((item.end - item.start).bit_length(), ([], []))
        at = bisect_right(starts, item.start)
        starts.insert(at, item.start)
        items.insert(at, item)

    def remove(self, item: R) -> None:
        starts, items = self._classes[(item.end - item.start).bit_length()]
        at = bisect_left(starts, item.start)
        while items[at] is not item:
            at += 1
        del starts[at], items[at]

    def overlapping(self, begin: int, end: int) -> list[R]:
        """Return all ranges that share a byte with [begin, end), in an order that depends only on addresses."""
        found: list[R] = []
        for size, (starts, items) in self._classes.items():
            low = bisect_right(starts, begin - (1 << size))
            high = bisect_left(starts, end)
            found += [item for item in items[low:high] if item.end > begin]
        return found


NOWHERE = ShadowBlock(0, 0, None, 0, None)
"""The owner of memory that no driver call allocated."""


class Shadow:
    """The shadow memory of one machine: all cells and blocks of device memory and pinned host memory."""

    def __init__(self) -> None:
        self.cells: dict[Key, Cell] = {}
        self.blocks: dict[int, ShadowBlock] = {}
        self._by_range: RangeIndex[Cell] = RangeIndex()
        self._owners: RangeIndex[ShadowBlock] = RangeIndex()
        self._remembered: list[tuple[Found, tuple[int, ...]]] = []

    def find(
        self, footprint: Footprint, ptrs: tuple[int, ...], known: Clock
    ) -> tuple[list[Cell], list[Cell], list[Cell]]:
        """Return the cells of a command that is not in `footprint.found`, and store them there.

        `known` is the host's clock.
        """
        keys = zip(ptrs, footprint.extents, strict=True)
        cells = [self.cells.get(key) or self.cell(key) for key in keys]
        outputs = footprint.outputs
        for block in dict.fromkeys([cell.block for cell in cells]):
            if len(block.cells) > block.many:
                self._settle(block, known, cells)
        readers = cells if footprint.updates else cells[outputs:]
        writers = cells[:outputs]
        partial = footprint.partial(ptrs)
        if partial is not None:  # a kernel accesses only selected elements of the operand
            writers, readers = writers[1 if partial == 0 else 0 :], cells[outputs + 1 :]
        if len(self._remembered) >= _LIMIT:
            self._forget_found()
        found = footprint.found[ptrs] = writers, readers, cells
        where = footprint.found, ptrs
        self._remembered.append(where)
        for cell in cells:
            cell.found.append(where)
        return found

    def _forget_found(self) -> None:
        for found, _ in self._remembered:
            found.clear()
        self._remembered.clear()
        for cell in self.cells.values():
            cell.found.clear()

    def cell(self, key: Key) -> Cell:
        """Create the cell of an access that was not seen before."""
        start, extent = key
        cell = Cell(start, extent, self.owner(start))
        near = self._by_range.overlapping(cell.start, cell.end)
        cell.neighbours = [c for c in near if overlap(start, extent, c.start, c.extent)]
        for other in cell.neighbours:
            other.neighbours.append(cell)
        self.cells[key] = cell
        if cell.end > cell.start:
            self._by_range.add(cell)
            cell.block.cells.append(cell)
        return cell

    def owner(self, ptr: int) -> ShadowBlock:
        """Return the block that an address belongs to now."""
        return _innermost(self._owners.overlapping(ptr, ptr + 1), ptr)

    def blocks_within(self, begin: int, end: int) -> list[ShadowBlock]:
        """Return the blocks, in use or free, that share a byte with [begin, end)."""
        return self._owners.overlapping(begin, end)

    def overlapping(self, begin: int, end: int) -> list[Cell]:
        return self._by_range.overlapping(begin, end)

    def own(
        self, start: int, nbytes: int, agent: LogicalThread | None, born: int, site: Site | None
    ) -> ShadowBlock:
        """Begin a lifetime of a block, which is the former block if its address and size are the same."""
        block = self.blocks.get(start)
        if block is not None and block.end - start == nbytes:
            block.renew(agent, born, site)
            if len(block.cells) > MANY:
                self._condense(block)
            return block
        near = self._owners.overlapping(start, start + nbytes)
        stale = [b for b in near if b.freed]
        block = ShadowBlock(start, nbytes, agent, born, site)
        # the block is a part of a larger allocation of the same kind
        block.host = _innermost(near, start).host
        for old in stale:
            self._disown(old)
            old.prior = ()
        block.prior = tuple(stale)
        self.blocks[start] = block
        self._owners.add(block)
        for cell in self._by_range.overlapping(start, start + nbytes):
            if cell in cell.block.cells:
                cell.block.cells.remove(cell)
            cell.block = block
            block.cells.append(cell)
        if len(block.cells) > MANY:
            self._condense(block)
        return block

    def forget(self, start: int, nbytes: int) -> None:
        """Drop memory that was returned to the driver, which waited for all its uses."""
        for cell in self._by_range.overlapping(start, start + nbytes):
            self.drop(cell)
        for block in self._owners.overlapping(start, start + nbytes):
            self._disown(block)

    def _disown(self, block: ShadowBlock) -> None:
        self._owners.remove(block)
        block.enter(NO_POOL)
        if self.blocks.get(block.start) is block:
            del self.blocks[block.start]

    def drop(self, cell: Cell) -> None:
        """Drop a cell whose accesses can no longer conflict with any."""
        for found, ptrs in cell.found:
            found.pop(ptrs, None)
        for other in cell.neighbours:
            other.neighbours.remove(cell)
        if self.cells.get((cell.start, cell.extent)) is cell:
            del self.cells[cell.start, cell.extent]
        self._by_range.remove(cell)
        if cell in cell.block.cells:
            cell.block.cells.remove(cell)

    def _settle(self, block: ShadowBlock, known: Clock, kept: list[Cell]) -> None:
        """Drop cells whose accesses the host has waited for, because some programs write a large tensor piece by piece.

        Only the written bytes are kept, as one cell for each contiguous range.
        """
        done = [c for c in block.cells if all(known.get(a[0], 0) >= a[1] for a in c.accesses())]
        written = [c for c in done if c.write is not None and c.write[1] >= block.born]
        needed = {*kept, *[c for c in written if not is_dense(c.extent)]}
        ranges: list[tuple[int, int, Command | None]] = []
        for cell in sorted([c for c in written if is_dense(c.extent)], key=lambda c: c.start):
            if ranges and cell.start <= ranges[-1][1]:
                start, end, last = ranges[-1]
                ranges[-1] = start, max(end, cell.end), last
            else:
                ranges.append((cell.start, cell.end, cell.write))
        for cell in done:
            if cell not in needed:
                self.drop(cell)
        for start, end, last in ranges:
            cell = self.cells.get((start, end - start)) or self.cell((start, end - start))
            cell.write = cell.write or last
        block.many = _LAYOUTS + 2 * len(block.cells)

    def _condense(self, block: ShadowBlock) -> None:
        """Replace the many layouts of past lifetimes by one cell for each logical thread that wrote.

        Accesses that the runtime's polling has ordered before the present lifetime are dropped. The new
        cell covers the bytes from the first to the last of those it replaces, which is slightly too much.
        It concerns only past lifetimes, whose accesses should all be ordered before the present one.
        """
        groups: dict[LogicalThread | None, list[tuple[Cell, Command | None, Iterable[Command]]]] = {}
        for cell in list(block.cells):
            cell.drop_polled()
            writes = [p.command for p in cell.partial_accesses() if p.writes]
            reads = [p.command for p in cell.partial_accesses() if not p.writes]
            kept = [(cell.write, [*cell.all_reads(), *reads]), *[(write, ()) for write in writes]]
            for write, reading in kept:
                groups.setdefault(None if write is None else write[0], []).append((cell, write, reading))
            self.drop(cell)
        for group in groups.values():
            start = min(cell.start for cell, _, _ in group)
            key = (start, max(cell.end for cell, _, _ in group) - start)
            into = self.cell(key)
            into.write = max([write for _, write, _ in group if write is not None], key=_number, default=None)
            into.reads = {r[0]: r for r in sorted([r for _, _, rs in group for r in rs], key=_number)} or None
            for other in into.neighbours:
                other.sole = None


def _innermost(blocks: list[ShadowBlock], ptr: int) -> ShadowBlock:
    """Return the innermost of the blocks that contain an address, which is the one created last."""
    return max([b for b in blocks if b.start <= ptr], key=_born, default=NOWHERE)


def _born(block: ShadowBlock) -> int:
    return block.born


def _number(command: Command) -> int:
    return command[1]


def clear_covered(cell: Cell, clock: Clock, agent: LogicalThread) -> None:
    """Drop the accesses of neighbours that a write covers and happens after."""
    for other in cell.neighbours:
        if covers(cell.start, cell.extent, other.start, other.extent) and all(
            a[0] is agent or clock.get(a[0], 0) >= a[1] for a in other.accesses()
        ):
            other.set_write(None)
