"""The free blocks of one device: best fit, split, coalesce and cross-stream reuse.

A request takes the smallest free block that fits. The remainder is split off if it is large enough (small pool: 512
bytes; large pool: more than 1 MiB). Free neighbours are coalesced; blocks of size classes last. See Note [The hot
path] in allocator.py.
"""

from __future__ import annotations

import sys

from flambeau.runtime.memory.allocator_config import MIB, Policy
from flambeau.runtime.memory.blocks import Block, Pool, merge_right, pop_newest
from flambeau.runtime.memory.cross_stream_reuse import HappensBefore, take_ordered_blocks
from flambeau.runtime.memory.log_entries import CUT, ORDER, SMALL, Entry
from flambeau.runtime.memory.private_pool import PrivatePool
from flambeau.runtime.streams.stream_order import StreamClocks

Key = tuple[int, int, PrivatePool | None]

_SCAN_CREDIT = 32  # blocks of other streams that one request without a good fit may examine


class Heap:
    """The pools of one device. Not locked: the allocator's lock protects it.

    Attributes:
        pools: (stream, kind, MemPool) -> pool.
        size_classes: (stream, requested bytes) -> stack of free blocks; the hot path's only lookup. May hold a
            stack that its pool has dropped; such a stack stays empty.
        searches: Number of requests that found no block in their pool; idleness of segments is measured in it.
    """

    __slots__ = ("_entries", "_index", "_orders", "_seen", "pools", "searches", "size_classes")

    def __init__(self, entries: list[Entry], orders: StreamClocks, index: int) -> None:
        self.pools: dict[Key, Pool] = {}
        self.size_classes: dict[tuple[int, int], list[Block]] = {}
        self.searches = 0
        self._seen: tuple[set[int], set[int]] = (set(), set())  # recent sizes of each kind of pool
        self._entries, self._orders, self._index = entries, orders, index

    # -- pools --------------------------------------------------------------------------------------------
    def new_pool(self, stream: int, kind: int, private: PrivatePool | None, policy: Policy) -> Pool:
        queue = self._orders.queue(stream)
        pool = self.pools[stream, kind, private] = Pool(kind, queue, private, self._seen[kind])
        pool.min_remainder = _min_remainder(pool, policy)
        return pool

    def apply_config(self, policy: Policy) -> None:
        """Change the settings of all pools."""
        for pool in self.pools.values():
            pool.min_remainder = _min_remainder(pool, policy)

    def pools_of_stream(self, stream: int) -> list[Pool]:
        return [pool for pool in self.pools.values() if pool.stream == stream]

    def shared_pools(self) -> list[Pool]:
        """Return all pools except those that belong to a live MemPool."""
        return [pool for pool in self.pools.values() if pool.private is None or not pool.private.open]

    def forget(self, pool: Pool) -> None:
        """Remove a pool that has no blocks and that no request uses."""
        self.pools.pop((pool.stream, pool.kind, pool.private), None)

    # -- a block for a request ----------------------------------------------------------------------------
    def take(self, pool: Pool, size: int, policy: Policy) -> Block | None:
        """Remove and return the best-fitting free block of a pool, within the limits on oversize blocks."""
        if not policy.max_split:
            return pool.free_list.take(size)
        block = pool.free_list.best(size)
        if block is None or not _may_serve(block, size, policy):
            return None
        pool.free_list.remove(block)
        return block

    def take_exact_or_best(self, pool: Pool, size: int, policy: Policy) -> Block | None:
        """Remove and return a free block of exactly this size, else the best fit; None if there is none."""
        exact = pool.size_classes.get(size)
        if exact and (block := pop_newest(exact)) is not None:
            pool.size_class_users[size] -= 1
            return block
        self.coalesce_all(pool, pool.unmerged)
        return self.take(pool, size, policy)

    def take_from_private_pools(self, pool: Pool, size: int, policy: Policy) -> Block | None:
        """Remove and return a free block of a MemPool with `use_on_oom`; None if there is none."""
        for other in self.pools.values():
            private = other.private
            alike = other.kind == pool.kind and other.stream == pool.stream and other is not pool
            if private is not None and private.use_on_oom and alike:
                block = self.take(other, size, policy)
                if block is not None:
                    return block
        return None

    def split(self, block: Block, size: int) -> bytes:
        """Split a block and add the remainder to the free list. Returns the log entry to write."""
        pool, after = block.pool, block.next
        if after is None and block.previous is None:
            split_entry = pool.entry(CUT, block.size, 2, 0)
        else:
            split_entry = pool.part_entries[1]
        remainder = Block(block.ptr + size, block.size - size, pool, block.freed)
        remainder.use_trace = block.use_trace
        remainder.previous, remainder.next = block, after
        if after is not None:
            after.previous = remainder
        block.size, block.next = size, remainder
        pool.free_list.add(remainder)
        return split_entry

    def take_from_other_streams(
        self, pool: Pool, size: int, best: Block | None, policy: Policy
    ) -> Block | None:
        """Return a better fit than `best`, which would be split, considering blocks of other streams.

        Size classes of other streams are not touched, except the class of this size. See Note [Reuse by order].
        """
        pool.scan_budget += _SCAN_CREDIT
        if pool.scan_budget < pool.last_scan or not self._scan_other_streams(pool, size, again=True):
            return best
        if best is not None:
            pool.free_list.add(best)
        return self.take_exact_or_best(pool, size, policy)

    def reuse_from_other_streams(self, pool: Pool) -> bool:
        """Move free blocks of other streams to this pool if they are ordered before it. Returns True if any moved.

        A complete scan runs once per logical time. Later scans at the same time run only if the scan budget allows.
        See Note [Reuse by order].
        """
        again = pool.last_reuse_time == self._orders.now
        if again:
            pool.scan_budget += _SCAN_CREDIT
            if pool.scan_budget < pool.last_scan:
                return False
        pool.last_reuse_time = self._orders.now
        return self._scan_other_streams(pool, None, again)

    def _scan_other_streams(self, pool: Pool, only: int | None, again: bool) -> bool:
        order = HappensBefore(self._orders, pool.stream, self._index)
        pool.last_scan, taken = take_ordered_blocks(pool, self.pools.values(), order, only, again)
        pool.scan_budget = 0
        if taken or only is None:
            for user in order.awaited_streams():
                self._entries.append(pool.entry(ORDER, 0, 0, user))
        return taken > 0

    def is_ordered_after(self, pool: Pool, other: Pool) -> bool:
        """Return True if a pool's stream has waited for the stream of another pool of the same kind."""
        return (
            other.kind == pool.kind and self._orders.awaited_time(pool.stream, other.stream, self._index) > 0
        )

    # -- joining ------------------------------------------------------------------------------------------
    def coalesce(self, pool: Pool, enough: int | None = None) -> None:
        """Coalesce the blocks of size classes, small sizes first, until a free block has `enough` bytes.

        Large blocks stay whole for as long as possible. Size classes without users are removed.
        """
        self.coalesce_all(pool, pool.unmerged)
        for size in sorted([size for size, blocks in pool.size_classes.items() if blocks]):
            blocks = pool.size_classes[size]
            pool.release_size_class(size, self.coalesce_all(pool, blocks))
            if enough is not None and pool.free_list.largest() >= enough:
                break

    def coalesce_all(self, pool: Pool, blocks: list[Block]) -> int:
        """Coalesce all blocks of a list. Returns their number."""
        count = 0
        while (block := pop_newest(blocks)) is not None:
            self.coalesce_block(pool, block)
            count += 1
        return count

    def coalesce_block(self, pool: Pool, block: Block) -> None:
        """Add a free block to the free list, merged with its free neighbours."""
        free_list, right, left = pool.free_list, block.next, block.previous
        absorbed = 0
        if right is not None and right.free_list is free_list:
            free_list.remove(right)
            merge_right(block, right)
            absorbed = 1
        if left is not None and left.free_list is free_list:
            free_list.remove(left)
            merge_right(left, block)
            block = left
            absorbed += 1
        if block.previous is None and block.next is None:  # the block is a whole segment
            block.idle = self.searches
            if absorbed:
                self._entries.append(pool.entry(CUT, -block.size, -1 - absorbed, 0))
        elif absorbed:
            self._entries.append(pool.part_entries[-absorbed])
        free_list.add(block)

    # -- reports ------------------------------------------------------------------------------------------
    def free_blocks(self) -> set[Block]:
        """Return all blocks that a request could get."""
        lists = [
            blocks for pool in self.pools.values() for blocks in (*pool.size_classes.values(), pool.unmerged)
        ]
        free = [free_block for pool in self.pools.values() for free_block in pool.free_list]
        return {*free, *[block for blocks in lists for block in list(blocks)]}


def _min_remainder(pool: Pool, policy: Policy) -> int:
    if pool.private is not None and pool.private.no_split:
        return sys.maxsize
    return 1 if pool.kind == SMALL or policy.expandable else MIB + 1


def _may_serve(block: Block, size: int, policy: Policy) -> bool:
    """Return True if a block may serve a request of `size` bytes.

    An oversize block serves only requests of about its size, unless smaller requests may split it anyway.
    """
    if policy.keeps_whole(size):
        return block.size < size + policy.oversize_slack
    return not policy.keeps_whole(block.size) or block.is_split or block.size == policy.large_segment
