"""`Ranges`: segments that grow. Addresses are reserved once, and memory is put behind them page by page.

With `expandable_segments:True` a pool that needs more does not ask for another segment, which would leave the
free end of the last one to small requests forever: it puts more pages behind its range, and the end of the last
block grows. Free pages in the middle of a range go back to the device alone. So little is lost to fragments
(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf).

A range is made for one stream. Those that know something of its order let it grow too, once they have no range of
their own that can: what they free then lies side by side, and the last page is not cut off again for each of
them.

A range is a chain of blocks like a segment. What has no memory behind it is a `Gap`, which is in no list of free
blocks. The last one stays for good, empty if need be: so each block of a range has a neighbour, and counts as a
part.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from flambeau.core.callsite import warn_program
from flambeau.core.errors import OutOfMemoryError
from flambeau.driver.protocol import Driver
from flambeau.runtime.memory.allocator_config import MIB
from flambeau.runtime.memory.blocks import Block, Pool, merge_right
from flambeau.runtime.memory.log_entries import SMALL

_PAGES = {True: 2 * MIB, False: 20 * MIB}  # by whether the pool is the small one: as in PyTorch
# how many ranges would together have as many addresses as the device has bytes, by whether the pool is the small one
_PARTS = {True: 64, False: 8}

Account = Callable[[Pool, int, int, int], None]
"""`account(pool, ptr, nbytes, parts)`: memory was added (nbytes above 0) or removed, with a number of free blocks."""


class Gap(Block):
    """A range of reserved addresses without memory."""

    __slots__ = ()


class Range:
    """A reserved range of `nbytes` addresses from `ptr` on, for one pool.

    Attributes:
        first: The first block of its chain.
        gaps: Address -> part without memory.
    """

    __slots__ = ("first", "gaps", "nbytes", "page", "pool", "ptr")

    def __init__(self, ptr: int, nbytes: int, page: int, pool: Pool) -> None:
        self.ptr, self.nbytes, self.page, self.pool = ptr, nbytes, page, pool
        self.first: Block = Gap(ptr, nbytes, pool, 0)
        self.gaps: list[Gap] = [self.first]

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks and gaps of the range, in address order."""
        block: Block | None = self.first
        while block is not None:
            following = block.next
            yield block
            block = following


class Ranges:
    """The ranges of one device's allocator. Not thread-safe; the allocator holds its lock."""

    def __init__(
        self, driver: Driver, index: int, account: Account, follows: Callable[[Pool, Pool], bool]
    ) -> None:
        self._driver, self._index, self._account, self._follows = driver, index, account, follows
        self._ranges: list[Range] = []

    # -- growing --------------------------------------------------------------------------------------
    def grow(self, pool: Pool, size: int, now: int, room: int | None) -> Block | None:
        """Map memory at further addresses of a pool and return a free block that is in no list.

        Args:
            size: The least size of the block, in bytes.
            now: The time at which the block counts as freed.
            room: The largest number of bytes to map; None for no limit.

        Returns:
            The block; None if the device cannot map memory or has no addresses left.

        Raises:
            OutOfMemoryError: If the device refuses the memory. Nothing has changed.
        """
        own = [held for held in self._ranges if held.pool is pool]
        shared = [h for h in self._ranges if h.pool is not pool and self._follows(pool, h.pool)]
        for held in own + shared:
            for gap in held.gaps:
                before = _free_block_before(gap, pool)
                if gap.size and gap.size + (before.size if before else 0) >= size:
                    return self._fill(held, gap, before, pool, size, now, room)
        made = self._reserve(pool, size)
        return None if made is None else self._fill(made, made.gaps[0], None, pool, size, now, room)

    def _reserve(self, pool: Pool, size: int) -> Range | None:
        small = pool.kind == SMALL
        least = self._driver.range_page(self._index)
        total = self._driver.device_properties(self._index).total_memory
        if not least or size > total:  # the device refuses it in any case
            return None
        page = -(-_PAGES[small] // least) * least
        share = total // _PARTS[small]
        nbytes = -(-max(size, share) // page) * page
        try:
            ptr = self._driver.range_reserve(self._index, nbytes)
        except OutOfMemoryError as error:
            warn_program(f"expandable_segments: {error}; this segment has a fixed size", UserWarning)
            return None
        self._ranges.append(Range(ptr, nbytes, page, pool))
        return self._ranges[-1]

    def _fill(
        self, held: Range, gap: Gap, before: Block | None, pool: Pool, size: int, now: int, room: int | None
    ) -> Block:
        missing = size - (before.size if before else 0)
        nbytes = -(-missing // held.page) * held.page
        if room is not None and nbytes > room:
            raise OutOfMemoryError("over the limit of set_per_process_memory_fraction")
        self._map(gap.ptr, nbytes, held.page)
        block = Block(gap.ptr, nbytes, pool, now)
        _insert_before(held, gap, block)
        gap.ptr += nbytes
        gap.size -= nbytes
        if not gap.size and gap.next is not None:
            _remove(held, gap)
        if before is not None:
            pool.free_list.remove(before)
            merge_right(before, block)
            block = before
        self._account(pool, gap.ptr - nbytes, nbytes, 0 if before else 1)
        return block

    def _map(self, ptr: int, nbytes: int, page: int) -> None:
        """Map all pages or none. Each page is mapped separately, so that it can be unmapped separately."""
        done = 0
        try:
            while done < nbytes:
                self._driver.range_map(ptr + done, page)
                done += page
        except OutOfMemoryError:
            if done:
                self._driver.range_unmap(ptr, done)
            raise

    # -- shrinking ------------------------------------------------------------------------------------
    def shrink(self, pools: Container[Pool]) -> None:
        """Release the whole pages of the free blocks of these pools, and the addresses of empty ranges."""
        for held in list(self._ranges):
            for run in list(_free_runs(held, pools)):
                self._empty(held, run)
            if held.first.next is None:  # the range consists of one gap
                self._driver.range_release(held.ptr)
                self._ranges.remove(held)

    def _empty(self, held: Range, run: list[Block]) -> None:
        """Unmap the whole pages of adjacent free blocks, which may belong to several streams (see
        cross_stream_reuse.py).
        """
        start, end = run[0].ptr, run[-1].ptr + run[-1].size
        low = start + (held.ptr - start) % held.page
        high = end - (end - held.ptr) % held.page
        if low >= high:
            return
        self._driver.range_unmap(low, high - low)
        touched = [
            free_block
            for free_block in run
            if free_block.ptr < high and free_block.ptr + free_block.size > low
        ]
        pool, following = touched[0].pool, touched[-1].next
        assert following is not None  # the last gap always follows
        gap = Gap(low, high - low, held.pool, 0)
        _insert_before(held, following, gap)
        held.gaps.append(gap)
        held.gaps.sort(key=lambda each: each.ptr)
        parts = sum([_keep_edges(held, free_block, low, high, following) - 1 for free_block in touched])
        _unite_gaps(held, gap)
        self._account(pool, low, low - high, parts)

    # -- reports --------------------------------------------------------------------------------------
    def owns(self, ptr: int) -> bool:
        """Return True if an address is in a range."""
        return any(held.ptr <= ptr < held.ptr + held.nbytes for held in self._ranges)

    def runs(self) -> Iterator[list[Block]]:
        """Yield the runs of blocks without a gap between them, in address order."""
        for held in self._ranges:
            run: list[Block] = []
            for block in held.blocks():
                if not isinstance(block, Gap):
                    run.append(block)
                elif run and block.size:
                    yield run
                    run = []
            if run:
                yield run


def _free_block_before(gap: Gap, pool: Pool) -> Block | None:
    before = gap.previous
    return before if before is not None and before.free_list is pool.free_list else None


def _free_runs(held: Range, pools: Container[Pool]) -> Iterator[list[Block]]:
    """Yield the runs of adjacent free blocks of these pools."""
    run: list[Block] = []
    for block in held.blocks():
        if block.is_free and block.pool in pools:
            run.append(block)
        elif run:
            yield run
            run = []


def _keep_edges(held: Range, free_block: Block, low: int, high: int, following: Block) -> int:
    """Return to the free list what remains of a free block after the addresses from `low` to `high` were unmapped.

    Returns the number of remaining parts.
    """
    free_blocks, end, kept = free_block.pool.free_list, free_block.ptr + free_block.size, 0
    free_blocks.remove(free_block)
    if end > high:
        rest = Block(high, end - high, free_block.pool, free_block.freed)
        rest.use_trace = free_block.use_trace
        _insert_before(held, following, rest)
        free_blocks.add(rest)
        kept += 1
    if free_block.ptr < low:
        free_block.size = low - free_block.ptr
        free_blocks.add(free_block)
        kept += 1
    else:
        _remove(held, free_block)
    return kept


def _insert_before(held: Range, following: Block, block: Block) -> None:
    before = following.previous
    block.previous, block.next, following.previous = before, following, block
    if before is None:
        held.first = block
    else:
        before.next = block


def _remove(held: Range, block: Block) -> None:
    """Remove a block from its chain. Another block follows it."""
    before, following = block.previous, block.next
    assert following is not None
    following.previous = before
    if before is None:
        held.first = following
    else:
        before.next = following
    if isinstance(block, Gap):
        held.gaps.remove(block)


def _unite_gaps(held: Range, gap: Gap) -> None:
    """Merge a new gap with adjacent gaps; the last of them remains."""
    before, following = gap.previous, gap.next
    if isinstance(before, Gap):
        gap.ptr = before.ptr
        gap.size += before.size
        _remove(held, before)
    if isinstance(following, Gap):
        following.ptr = gap.ptr
        following.size += gap.size
        _remove(held, gap)
