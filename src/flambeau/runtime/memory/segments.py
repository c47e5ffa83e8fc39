"""`Segments`: the device memory of an allocator, its limit, and the rules by which it is released.

A segment is a chain of blocks, found by its first one. A resource (`resources.py`) allocates and frees it as a
whole. With the policy's expandable segments, segments grow and shrink page by page instead
(`expandable_segments.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from flambeau.core.errors import OutOfMemoryError
from flambeau.driver.protocol import Driver
from flambeau.runtime.memory.allocator_config import Policy
from flambeau.runtime.memory.allocator_statistics import ALL, POOLS, Tally
from flambeau.runtime.memory.blocks import Block, Pool
from flambeau.runtime.memory.event_log import EventLog
from flambeau.runtime.memory.expandable_segments import Ranges
from flambeau.runtime.memory.log_entries import CUT, GROW, MAP, SHRINK, UNMAP
from flambeau.runtime.memory.private_pool import PoolId
from flambeau.runtime.memory.resources import ALIGNED, DriverMemory, Resource


class Segments:
    """The segments of one device's allocator, protected by the allocator's lock.

    Attributes:
        source: The resource that allocates them.
        limit: The maximum number of reserved bytes; None for the device's memory.
        reserved: Bytes of all segments.
        calls: The number of segments that were allocated (`allocated`) and returned to the device (`freed`).
        oversize: The number of segments that were oversize by the policy when they were allocated.
    """

    def __init__(
        self, driver: Driver, index: int, journal: EventLog, follows: Callable[[Pool, Pool], bool]
    ) -> None:
        self.source: Resource = DriverMemory()
        self.limit: int | None = None
        self.reserved = 0
        self.calls, self.oversize = Tally(), Tally()
        self._oversize: set[int] = set()  # addresses of segments that were oversize when they were created
        self._driver, self._index, self._event_log = driver, index, journal
        self._firsts: dict[int, Block] = {}  # address -> first block of the segment
        self._ranges = Ranges(driver, index, self._count_pages, follows)
        self._private: dict[
            PoolId, tuple[Tally, Tally, Tally]
        ] = {}  # reserved bytes of MemPools, as in POOLS

    # -- growth -------------------------------------------------------------------------------------------
    def grow(self, pool: Pool, size: int, policy: Policy, now: int) -> Block:
        """Return a block of at least `size` bytes from a new segment or from an expandable segment that grew.

        The block is in no free list.

        Args:
            now: The logical time at which the block counts as freed.

        Raises:
            OutOfMemoryError: If there is not enough memory. Nothing has changed.
        """
        if policy.expandable and pool.private is None and isinstance(self.source, DriverMemory):
            room = None if self.limit is None else self.limit - self.reserved
            block = self._ranges.grow(pool, size, now, room)
            if block is not None:
                return block
        return self.new(pool, policy.segment_size(size), policy, now)

    def new(self, pool: Pool, size: int, policy: Policy, now: int) -> Block:
        """Allocate a segment of exactly this size."""
        if self.limit is not None and self.reserved + size > self.limit:
            raise OutOfMemoryError("over the limit of set_per_process_memory_fraction")
        # Any, because compiled code would refuse a value that is not an int
        source: Any = self._source_of(pool)
        ptr = source.allocate(size, self._driver, self._index, pool.stream)
        if not (isinstance(ptr, int) and 0 < ptr < 1 << 63):
            given = f"{ptr:#x}" if isinstance(ptr, int) else repr(ptr)
            raise RuntimeError(
                f"{type(source).__name__}.allocate({size}) gave {given}, which is not an address"
            )
        if ptr % ALIGNED:
            source.free(ptr, size, self._driver, self._index, pool.stream)
            raise RuntimeError(
                f"{type(source).__name__}.allocate({size}) gave memory at {ptr:#x}, not a multiple of {ALIGNED}: "
                "kernels count on that"
            )
        block = self._firsts[ptr] = Block(ptr, size, pool, now)
        if policy.is_oversize(size):
            self._oversize.add(ptr)
            self.oversize.add(1)
        self._count(pool, ptr, size, 1)
        return block

    def _source_of(self, pool: Pool) -> Resource:
        private = pool.private
        return self.source if private is None or private.source is None else private.source

    # -- memory goes --------------------------------------------------------------------------------------
    def release(self, first: Block) -> None:
        """Return a free segment to the driver, which first waits for the device. If the driver raises, nothing has
        changed.
        """
        parts = list(_blocks_from(first))
        pool, size = first.pool, sum([block.size for block in parts])
        self._source_of(pool).free(first.ptr, size, self._driver, self._index, pool.stream)
        del self._firsts[first.ptr]
        for block in parts:
            if block.is_free:
                block.pool.free_list.remove(block)
            if len(parts) > 1:
                self._event_log.entries.append(pool.entry(CUT, -block.size, -1, 0))
        if first.ptr in self._oversize:
            self._oversize.remove(first.ptr)
            self.oversize.add(-1)
        self._count(pool, first.ptr, size, -1)

    def release_free(self, pools: Iterable[Pool]) -> None:
        """Return every free segment to the driver whose blocks all belong to these pools."""
        wanted = set(pools)
        for first in list(self._firsts.values()):
            if all(block.is_free and block.pool in wanted for block in _blocks_from(first)):
                self.release(first)
        self._ranges.shrink(wanted)

    def excess(self, policy: Policy) -> int:
        """Return how many bytes are reserved beyond the policy's share of the allowed memory."""
        allowed = self.limit
        if allowed is None:
            allowed = self._driver.device_properties(self._index).total_memory
        return self.reserved - int(policy.collect_above * allowed)

    def release_idle(self, pools: Collection[Pool], policy: Policy, searches: int) -> None:
        """Release the free segments that have been idle for longest, while too much memory is reserved.

        Args:
            searches: The number of searches so far, which measures idle time.
        """
        excess = self.excess(policy)
        while excess > 0:
            idle = [free_block for pool in pools for free_block in pool.free_list if not free_block.is_split]
            if not idle:
                return
            limit = sum(searches - free_block.idle for free_block in idle) / len(idle)
            for free_block in idle:
                if excess > 0 and searches - free_block.idle >= limit:
                    excess -= free_block.size
                    self.release(free_block)

    # -- figures ------------------------------------------------------------------------------------------
    def _count(self, pool: Pool, ptr: int, size: int, change: int) -> None:
        self._event_log.write(pool.entry(GROW if change > 0 else SHRINK, size, size, ptr))
        self.reserved += change * size
        if pool.private is not None:
            tallies = self._private.setdefault(pool.private.id, (Tally(), Tally(), Tally()))
            for tally in (tallies[pool.kind], tallies[ALL]):
                tally.add(change * size)
        self.calls.add(change)

    def _count_pages(self, pool: Pool, ptr: int, nbytes: int, parts: int) -> None:
        code = MAP if nbytes > 0 else UNMAP
        self._event_log.write(pool.entry(code, abs(nbytes), abs(nbytes), ptr))
        self._event_log.entries.append(pool.entry(CUT, nbytes, parts, 0))
        self.reserved += nbytes
        self.calls.add(1 if nbytes > 0 else -1)

    def tallies(self) -> Iterator[Tally]:
        """Yield all counters of the segments, in order to reset them."""
        yield from (self.oversize, self.calls)
        for tallies in self._private.values():
            yield from tallies

    def forget(self, id: PoolId) -> None:
        """Remove the statistics of a destroyed MemPool, if it holds no memory."""
        if id in self._private and not self._private[id][ALL].current:
            del self._private[id]

    def private_statistics(self) -> dict[PoolId, dict[str, dict[str, int]]]:
        """Return the bytes in segments of each MemPool: its id -> kind of pool -> bytes."""
        return {
            id: {POOLS[kind]: tally.figures() for kind, tally in enumerate(tallies)}
            for id, tallies in self._private.items()
        }

    # -- reports ------------------------------------------------------------------------------------------
    def is_expandable(self, ptr: int) -> bool:
        """Return True if an address lies in an expandable segment."""
        return self._ranges.owns(ptr)

    def runs(self) -> Iterator[list[Block]]:
        """Yield the blocks of each segment, in address order."""
        for first in list(self._firsts.values()):
            yield list(_blocks_from(first))
        yield from self._ranges.runs()

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of all segments."""
        for run in self.runs():
            yield from run


def _blocks_from(first: Block) -> Iterator[Block]:
    block: Block | None = first
    while block is not None:
        yield block
        block = block.next
