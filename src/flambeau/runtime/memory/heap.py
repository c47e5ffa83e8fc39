"""`Heap`: the free blocks of one device, by pool: the best fit, splitting, joining, taking over from other streams.

A request takes the smallest free block that fits and splits off the rest (small pool: 512 bytes or more; large pool:
more than 1 MiB); free neighbours join. Blocks of bins (Note [The hot path] in allocator.py) do so last.
"""

from __future__ import annotations

import sys

from flambeau.runtime.memory.allocator_config import MIB, Policy
from flambeau.runtime.memory.blocks import Block, Pool, absorb, pop
from flambeau.runtime.memory.cross_stream_reuse import Order, adopt
from flambeau.runtime.memory.log_entries import CUT, ORDER, SMALL, Entry
from flambeau.runtime.memory.private_pool import PrivatePool
from flambeau.runtime.streams.stream_order import Orders

Key = tuple[int, int, PrivatePool | None]

_LOOKS = 32  # at blocks of other streams, for each request that no block at hand fits well


class Heap:
    """The pools by stream, kind and MemPool. Not locked: the allocator sees to that.

    bins: of whom a block comes at once, by stream and request: the hot path's only look-up. One that its pool dropped
    may stay there: nothing comes back to it, so who looks finds it empty. searches: how often no block was at hand, by
    which idleness is measured.
    """

    __slots__ = ("_entries", "_index", "_orders", "_seen", "bins", "pools", "searches")

    def __init__(self, entries: list[Entry], orders: Orders, index: int) -> None:
        self.pools: dict[Key, Pool] = {}
        self.bins: dict[tuple[int, int], list[Block]] = {}
        self.searches = 0
        self._seen: tuple[set[int], set[int]] = (set(), set())  # sizes asked for lately, by kind
        self._entries, self._orders, self._index = entries, orders, index

    # -- pools --------------------------------------------------------------------------------------------
    def new_pool(self, stream: int, kind: int, private: PrivatePool | None, policy: Policy) -> Pool:
        queue = self._orders.queue(stream)
        pool = self.pools[stream, kind, private] = Pool(kind, queue, private, self._seen[kind])
        pool.least = _least_rest(pool, policy)
        return pool

    def obey(self, policy: Policy) -> None:
        """The policy is another one from now on."""
        for pool in self.pools.values():
            pool.least = _least_rest(pool, policy)

    def of_stream(self, stream: int) -> list[Pool]:
        return [pool for pool in self.pools.values() if pool.stream == stream]

    def shared(self) -> list[Pool]:
        """All pools but those of MemPools that live."""
        return [pool for pool in self.pools.values() if pool.private is None or not pool.private.open]

    def forget(self, pool: Pool) -> None:
        """The pool has no blocks any more, and nobody asks it."""
        self.pools.pop((pool.stream, pool.kind, pool.private), None)

    # -- a block for a request ----------------------------------------------------------------------------
    def take(self, pool: Pool, size: int, policy: Policy) -> Block | None:
        """The best hole of a pool, taken out, within the limits on oversize blocks."""
        if not policy.max_split:
            return pool.holes.take(size)
        block = pool.holes.best(size)
        if block is None or not _is_apt(block, size, policy):
            return None
        pool.holes.remove(block)
        return block

    def near(self, pool: Pool, size: int, policy: Policy) -> Block | None:
        """A free block of this very size, or the best hole, taken out."""
        found = pool.bins.get(size)
        if found and (block := pop(found)) is not None:
            pool.homes[size] -= 1
            return block
        self.join_all(pool, pool.loose)
        return self.take(pool, size, policy)

    def of_last_resort(self, pool: Pool, size: int, policy: Policy) -> Block | None:
        """A hole of a MemPool that allows it."""
        for other in self.pools.values():
            private = other.private
            alike = other.kind == pool.kind and other.stream == pool.stream and other is not pool
            if private is not None and private.use_on_oom and alike:
                block = self.take(other, size, policy)
                if block is not None:
                    return block
        return None

    def split(self, block: Block, size: int) -> bytes:
        """Make what a block, larger than `size`, has beyond it a hole. What is to be written of it."""
        pool, after = block.pool, block.next
        if after is None and block.previous is None:
            cut = pool.entry(CUT, block.size, 2, 0)
        else:
            cut = pool.parts[1]
        rest = Block(block.ptr + size, block.size - size, pool, block.freed)
        rest.trace = block.trace
        rest.previous, rest.next = block, after
        if after is not None:
            after.previous = rest
        block.size, block.next = size, rest
        pool.holes.add(rest)
        return cut

    def better(self, pool: Pool, size: int, found: Block | None, policy: Policy) -> Block | None:
        """What fits better than the best hole of a pool, taken out, which would be cut: other streams have holes too.

        Blocks of bins stay with their streams, but for those of this very size. See Note [Reuse by order].
        """
        pool.patience += _LOOKS
        if pool.patience < pool.looked or not self._take_over(pool, size, again=True):
            return found
        if found is not None:
            pool.holes.add(found)
        return self.near(pool, size, policy)

    def adopt(self, pool: Pool) -> bool:
        """Take over what other streams have for this pool. Whether there is any. See Note [Reuse by order].

        Between two marks it is done once; again for what was freed since, unless there is more to look at than that is
        worth.
        """
        again = pool.adopted == self._orders.now
        if again:
            pool.patience += _LOOKS
            if pool.patience < pool.looked:
                return False
        pool.adopted = self._orders.now
        return self._take_over(pool, None, again)

    def _take_over(self, pool: Pool, only: int | None, again: bool) -> bool:
        order = Order(self._orders, pool.stream, self._index)
        pool.looked, taken = adopt(pool, self.pools.values(), order, only, again)
        pool.patience = 0
        if taken or only is None:
            for user in order.known():
                self._entries.append(pool.entry(ORDER, 0, 0, user))
        return taken > 0

    def follows(self, pool: Pool, other: Pool) -> bool:
        """Whether a pool's stream knows anything of the stream of another one that serves alike requests."""
        return other.kind == pool.kind and self._orders.known(pool.stream, other.stream, self._index) > 0

    # -- joining ------------------------------------------------------------------------------------------
    def consolidate(self, pool: Pool, enough: int | None = None) -> None:
        """Join the blocks of bins with their neighbours, small ones first, until there is a hole of `enough` bytes.

        Large ones, which others ask for, stay whole for as long as they can. Bins that no block calls home go.
        """
        self.join_all(pool, pool.loose)
        for size in sorted([size for size, blocks in pool.bins.items() if blocks]):
            blocks = pool.bins[size]
            pool.leave(size, self.join_all(pool, blocks))
            if enough is not None and pool.holes.largest() >= enough:
                break

    def join_all(self, pool: Pool, blocks: list[Block]) -> int:
        """Make free blocks holes. How many they were."""
        count = 0
        while (block := pop(blocks)) is not None:
            self.join(pool, block)
            count += 1
        return count

    def join(self, pool: Pool, block: Block) -> None:
        """Make a free block a hole, one with the holes beside it."""
        holes, right, left = pool.holes, block.next, block.previous
        absorbed = 0
        if right is not None and right.holes is holes:
            holes.remove(right)
            absorb(block, right)
            absorbed = 1
        if left is not None and left.holes is holes:
            holes.remove(left)
            absorb(left, block)
            block = left
            absorbed += 1
        if block.previous is None and block.next is None:  # a whole segment, no part
            block.idle = self.searches
            if absorbed:
                self._entries.append(pool.entry(CUT, -block.size, -1 - absorbed, 0))
        elif absorbed:
            self._entries.append(pool.parts[-absorbed])
        holes.add(block)

    # -- reports ------------------------------------------------------------------------------------------
    def free_blocks(self) -> set[Block]:
        """The blocks that could be handed out: holes, and those in bins."""
        lists = [blocks for pool in self.pools.values() for blocks in (*pool.bins.values(), pool.loose)]
        holes = [hole for pool in self.pools.values() for hole in pool.holes]
        return {*holes, *[block for blocks in lists for block in list(blocks)]}


def _least_rest(pool: Pool, policy: Policy) -> int:
    """How large the rest of a block must be at least to be worth a cut."""
    if pool.private is not None and pool.private.no_split:
        return sys.maxsize
    return 1 if pool.kind == SMALL or policy.expandable else MIB + 1


def _is_apt(block: Block, size: int, policy: Policy) -> bool:
    """Oversize blocks serve requests of about their size alone, but for those that smaller ones are cut from anyway."""
    if policy.keeps_whole(size):
        return block.size < size + policy.oversize_slack
    return not policy.keeps_whole(block.size) or block.is_split or block.size == policy.large_segment
