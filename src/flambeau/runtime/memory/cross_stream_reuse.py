"""`adopt`: what a stream takes over from others before the heap grows. `Order`: what it knows of them.

# Note [Reuse by order]
Memory goes back to its stream. But where a program rotates over streams, each would hold what the others have freed.
So before the heap grows, the asking stream takes over each free block of which two things hold. Nobody but its own
stream has used it: the launch path says so when another does (`CachingAllocator.share`). And it was freed before a mark
of its stream that the asking stream waits for, or the host has waited for (`stream_order.py`): then all that used it
is done before anything the asking stream does with it. The device is never asked, so what is reused repeats from run
to run. For every other block the strict rule holds, because a program may free a block that another stream still uses
if its own stream waits for that one later; only its own stream comes after that wait.

Between two marks of the machine that is done once for what a stream lacks, since all free blocks of others are looked
at; and again for what was freed since (`Heap.adopt`): a program that binds several names anew frees each in the midst
of a step. Before a stream cuts a hole of its own it takes over holes of others, and their
blocks of the very size (`Heap.better`): else each stream would cut what is too large while another has what fits, and
holes of several streams would never join. Not their other blocks in bins, which they are likely to ask for. What is
looked at again is bounded by the number of requests that lead to it.

A block that was taken over, but not used yet, keeps a trace of who used it: others, its former stream among them, may
take it over in their turn. Joined blocks have the users of both.

Where there are thousands of streams, not all of them are looked at each time: the newest of those that the asking
stream knows anything of are (`_MOST_LENDERS`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from flambeau.runtime.memory.blocks import Block, Pool, give, label, pop, users
from flambeau.runtime.streams.stream_order import NEVER, Orders

_MOST_LENDERS = 128  # pools that one search for blocks of other streams looks at


class Order:
    """What one stream of a device knows of the others, each looked up once."""

    __slots__ = ("_index", "_limits", "_orders", "_stream")

    def __init__(self, orders: Orders, stream: int, index: int) -> None:
        self._orders = orders
        self._stream = stream
        self._index = index
        self._limits: dict[int, int] = {stream: NEVER + 1}

    def known(self) -> list[int]:
        """The other streams that were asked for, and of which this one knows something."""
        return [user for user, limit in self._limits.items() if 0 < limit <= NEVER]

    def knows(self, stream: int) -> bool:
        """Whether the stream knows anything of another one."""
        return self._covers(stream, 0)

    def covers(self, block: Block) -> bool:
        """Whether all that used a free block is done before what the stream is given from now on."""
        if block.trace is not None:
            return all(self._covers(user, tick) for user, tick in users(block).items())
        return self._covers(block.stream, block.freed)

    def _covers(self, user: int, tick: int) -> bool:
        limit = self._limits.get(user)
        if limit is None:
            limit = self._limits[user] = self._orders.known(self._stream, user, self._index)
        return tick < limit

    def lenders(self, pools: Iterable[Pool], pool: Pool) -> list[Pool]:
        """The pools of other streams that may have something for this one."""
        others = [
            other
            for other in list(pools)
            if other.kind == pool.kind and other.private is pool.private and other is not pool
        ]
        if len(others) <= _MOST_LENDERS:
            return others
        known = (o for o in reversed(others) if self._orders.known(self._stream, o.stream, self._index))
        return list(islice(known, _MOST_LENDERS))


def adopt(
    pool: Pool, pools: Collection[Pool], order: Order, only: int | None = None, again: bool = False
) -> tuple[int, int]:
    """Take over the free blocks of other streams that are ordered before what the pool's stream does from now on.

    only: of those in bins, take none but of this size. again: look at streams alone of which anything is known. How
    many pools, bins and blocks it looked at, and how many blocks it took.
    """
    looked, count = len(pools), 0
    for other in order.lenders(pools, pool):
        if again and not order.knows(other.stream):
            continue
        for size in list(other.bins) if only is None else (only,):
            found = other.bins.get(size)
            if found:
                looked += len(found) + 1
                count += _adopt_bin(other, size, pool, order)
        looked += len(other.loose)
        taken = _sift(other.loose, order)
        for hole in list(other.holes):
            looked += 1
            if order.covers(hole):
                other.holes.remove(hole)
                taken.append(hole)
        for block in taken:
            give(block, pool, pool.loose)
        pool.loose += taken  # to join: those beside them may be of this pool now
        count += len(taken)
    return looked, count


def _adopt_bin(other: Pool, size: int, pool: Pool, order: Order) -> int:
    """How many it takes."""
    taken = _sift(other.bins[size], order)
    if taken:
        mine = pool.bins.setdefault(size, [])
        for block in taken:
            give(block, pool, mine)
            label(block, block.requested)
        other.leave(size, len(taken))
        pool.homes[size] = pool.homes.get(size, 0) + len(taken)
        mine.extend(taken)
    return len(taken)


def _sift(blocks: list[Block], order: Order) -> list[Block]:
    """Take out of a list of free blocks those that are ordered. Other threads may take and add meanwhile."""
    taken: list[Block] = []
    left: list[Block] = []
    while (block := pop(blocks)) is not None:
        (taken if order.covers(block) else left).append(block)
    blocks[:0] = reversed(left)
    taken.reverse()
    return taken
