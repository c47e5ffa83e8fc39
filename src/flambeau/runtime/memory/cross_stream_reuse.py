"""Reuse of free blocks by other streams, before the heap grows.

# Note [Reuse by order]
Problem: a block returns to its stream. A program that rotates over streams would hold the freed memory of each.

Rule: before the heap grows, the requesting stream takes every free block that satisfies two conditions. Only its
own stream has used it; the launch path reports other uses (`CachingAllocator.share`). It was freed before a
recorded time of its stream that the requesting stream, or the host, has waited for (`stream_order.py`). Then all of
its uses finish before any later work of the requesting stream. The device is never polled, so reuse repeats from
run to run. All other blocks follow the strict rule: only their own stream reuses them, because a program may free a
block that another stream still uses if its own stream waits for that stream later.

Cost: a scan examines all free blocks of other streams, so a complete one runs once per logical time. Scans for
blocks freed since then are bounded by the number of requests (`Heap.reuse_from_other_streams`). Before a stream
splits a free block, it takes free blocks of other streams, and blocks of exactly this size
(`Heap.take_from_other_streams`). Otherwise each stream would split large blocks while others have fitting ones, and
free blocks of several streams would never coalesce. Other size classes are left, because their streams are likely
to request these sizes again.

A block that was taken but not used yet keeps its last users, so further streams, among them its former one, can
take it. Coalesced blocks have the users of both parts. With thousands of streams only the newest `_MAX_DONORS`
pools are scanned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from flambeau.runtime.memory.blocks import Block, Pool, last_users, move_to_pool, pop_newest, prepare_entries
from flambeau.runtime.streams.stream_order import NEVER, StreamClocks

_MAX_DONORS = 128  # pools that one search of other streams' blocks examines


class HappensBefore:
    """The logical times of other streams that happen before the next command of one stream, each looked up once."""

    __slots__ = ("_index", "_limits", "_orders", "_stream")

    def __init__(self, orders: StreamClocks, stream: int, index: int) -> None:
        self._orders = orders
        self._stream = stream
        self._index = index
        self._limits: dict[int, int] = {stream: NEVER + 1}

    def awaited_streams(self) -> list[int]:
        """Return the streams looked up so far for which this stream has waited."""
        return [user for user, limit in self._limits.items() if 0 < limit <= NEVER]

    def has_waited_for(self, stream: int) -> bool:
        """Return True if the stream has waited for any work of another stream."""
        return self._has_passed(stream, 0)

    def is_ordered_before_stream(self, block: Block) -> bool:
        """Return True if all uses of a free block finish before any later work of the stream."""
        if block.use_trace is not None:
            return all(self._has_passed(user, tick) for user, tick in last_users(block).items())
        return self._has_passed(block.stream, block.freed)

    def _has_passed(self, user: int, tick: int) -> bool:
        limit = self._limits.get(user)
        if limit is None:
            limit = self._limits[user] = self._orders.awaited_time(self._stream, user, self._index)
        return tick < limit

    def donor_pools(self, pools: Iterable[Pool], pool: Pool) -> list[Pool]:
        """Return the pools of other streams from which this pool may take blocks."""
        others = [
            other
            for other in list(pools)
            if other.kind == pool.kind and other.private is pool.private and other is not pool
        ]
        if len(others) <= _MAX_DONORS:
            return others
        known = (
            o for o in reversed(others) if self._orders.awaited_time(self._stream, o.stream, self._index)
        )
        return list(islice(known, _MAX_DONORS))


def take_ordered_blocks(
    pool: Pool, pools: Collection[Pool], order: HappensBefore, only: int | None = None, again: bool = False
) -> tuple[int, int]:
    """Move free blocks of other streams to `pool` if all of their uses are ordered before the pool's stream.

    Args:
        pool: The pool that receives the blocks.
        pools: All pools of the device.
        order: What happens before the next command of the pool's stream.
        only: If given, take blocks of size classes of this size only.
        again: True to examine only streams for which the pool's stream has waited.

    Returns:
        The number of pools and blocks examined, and the number of blocks moved.
    """
    scanned, count = len(pools), 0
    for other in order.donor_pools(pools, pool):
        if again and not order.has_waited_for(other.stream):
            continue
        for size in list(other.size_classes) if only is None else (only,):
            blocks = other.size_classes.get(size)
            if blocks:
                scanned += len(blocks) + 1
                count += _take_ordered_size_class(other, size, pool, order)
        scanned += len(other.unmerged)
        taken = _remove_ordered(other.unmerged, order)
        for free_block in list(other.free_list):
            scanned += 1
            if order.is_ordered_before_stream(free_block):
                other.free_list.remove(free_block)
                taken.append(free_block)
        for block in taken:
            move_to_pool(block, pool, pool.unmerged)
        pool.unmerged += taken  # to be coalesced, because their neighbours may belong to this pool now
        count += len(taken)
    return scanned, count


def _take_ordered_size_class(other: Pool, size: int, pool: Pool, order: HappensBefore) -> int:
    """Move the ordered blocks of one size class. Returns their number."""
    taken = _remove_ordered(other.size_classes[size], order)
    if taken:
        mine = pool.size_classes.setdefault(size, [])
        for block in taken:
            move_to_pool(block, pool, mine)
            prepare_entries(block, block.requested)
        other.release_size_class(size, len(taken))
        pool.size_class_users[size] = pool.size_class_users.get(size, 0) + len(taken)
        mine.extend(taken)
    return len(taken)


def _remove_ordered(blocks: list[Block], order: HappensBefore) -> list[Block]:
    """Remove and return the ordered blocks of a list. Other threads may take and add blocks at the same time."""
    taken: list[Block] = []
    left: list[Block] = []
    while (block := pop_newest(blocks)) is not None:
        (taken if order.is_ordered_before_stream(block) else left).append(block)
    blocks[:0] = reversed(left)
    taken.reverse()
    return taken
