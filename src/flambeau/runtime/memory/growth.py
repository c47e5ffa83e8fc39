"""Growth and release of an allocator's reserved memory.

# Note [Ended streams]
Programs may create a stream per iteration. After a stream is destroyed, no request uses its pools. When many such
pools exist and another segment is needed, their memory is released, which waits for the device. It is not given to
unordered streams, because then races of the program would go unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.allocator_config import ROUND, SMALL_REQUEST, TOO_MUCH, Policy
from flambeau.runtime.memory.blocks import Block, Pool, prepare_entries
from flambeau.runtime.memory.deferred_frees import DeferredFrees
from flambeau.runtime.memory.event_log import EventLog
from flambeau.runtime.memory.heap import Heap
from flambeau.runtime.memory.log_entries import LARGE, REFUSE, SMALL
from flambeau.runtime.memory.private_pool import PoolId
from flambeau.runtime.memory.segments import Segments

_MAX_ENDED_POOLS: Final = 64  # pools of ended streams that are kept before their memory is released


class Growth:
    """Blocks of new segments, and the release of cached memory, on request or when the device refuses a segment.

    All methods require the allocator's lock. During a CUDA graph capture nothing is released, because that waits for
    the device.

    Attributes:
        before_retry: Called when the device refuses memory, to free some before the second attempt.
        num_retries, num_ooms, num_waits: The counters `num_alloc_retries`, `num_ooms` and `num_sync_all_streams` of
            `torch.cuda.memory_stats`.
    """

    __slots__ = (
        "_context", "_driver", "_ended_pools", "_explain", "_frees", "_heap", "_log", "_many_ended",
        "_segments", "before_retry", "num_ooms", "num_retries", "num_waits",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        log: EventLog,
        heap: Heap,
        segments: Segments,
        frees: DeferredFrees,
        explain: Callable[[Pool, int], str],
    ) -> None:
        self.before_retry: Callable[[], object] | None = None
        self.reset_counters()
        self._driver = context.driver  # the context's refuses calls while it is suspended
        self._context, self._log, self._heap, self._segments, self._frees = (
            context,
            log,
            heap,
            segments,
            frees,
        )
        self._explain = explain  # returns the error for a failed request
        self._ended_pools: list[Pool] = []  # see Note [Ended streams]
        self._many_ended = _MAX_ENDED_POOLS

    def reset_counters(self) -> None:
        self.num_retries = self.num_ooms = self.num_waits = 0

    # -- new segments -------------------------------------------------------------------------------------
    def segment_block(self, pool: Pool, size: int, nbytes: int, policy: Policy) -> Block:
        """Return a free block of a new segment. If the device refuses, release cached memory and try again.

        Args:
            pool: The pool that the block is for.
            size: The rounded size.
            nbytes: The requested size.
            policy: The settings.

        Raises:
            OutOfMemoryError: If the device still refuses.
        """
        if self._context.orders.capturing:
            try:
                return self._grow(pool, size, policy)
            except OutOfMemoryError:
                raise self._out_of_memory(pool, size, nbytes) from None
        self._release_seldom_used(policy)
        try:
            return self._grow(pool, size, policy)
        except OutOfMemoryError:
            self._reclaim_cached()
        block = self._heap.take(pool, size, policy)
        if block is not None:
            return block
        self._segments.release_free(self._heap.shared_pools())
        try:
            return self._grow(pool, size, policy)
        except OutOfMemoryError:
            block = self._heap.take_from_private_pools(pool, size, policy)
            if block is None:
                raise self._out_of_memory(pool, size, nbytes) from None
        return block

    def _grow(self, pool: Pool, size: int, policy: Policy) -> Block:
        return self._segments.grow(pool, size, policy, self._context.orders.now)

    def uncached_block(self, nbytes: int, stream: int, policy: Policy, relieve: bool = False) -> Block:
        """Return a separate segment that is released as soon as it is freed. Touches no shared structure.

        Args:
            nbytes: The requested size.
            stream: The handle of the stream.
            policy: The settings.
            relieve: True if cached memory may be released to make room.

        Raises:
            OutOfMemoryError: If the device refuses.
        """
        size = -nbytes // ROUND * -ROUND
        if size >= TOO_MUCH:
            raise request_too_large()
        orders = self._context.orders
        pool = Pool(SMALL if size <= SMALL_REQUEST else LARGE, orders.queue(stream), None, set())
        pool.token = -1  # no other block gets this memory
        try:
            block = self._segments.new(pool, size, policy, orders.now)
        except OutOfMemoryError:
            if not relieve or orders.capturing:
                raise self._out_of_memory(pool, size, nbytes) from None
            self._reclaim_cached()
            self._segments.release_free(self._heap.shared_pools())
            return self.uncached_block(nbytes, stream, policy)
        block.free_destination = block.default_list = self._frees
        prepare_entries(block, nbytes)
        self._log.book(block)
        return block

    def _out_of_memory(self, pool: Pool, size: int, nbytes: int) -> OutOfMemoryError:
        self.num_ooms += 1
        free, _ = self._driver.mem_info(self._context.driver_index)  # stored in the entry's address field
        self._log.write(pool.entry(REFUSE, size, nbytes, free))
        self._log.settle()
        return OutOfMemoryError(self._explain(pool, size))

    # -- release ------------------------------------------------------------------------------------------
    def _release_seldom_used(self, policy: Policy) -> None:
        """Release memory of ended streams, and idle segments above `garbage_collection_threshold`."""
        if len(self._ended_pools) >= self._many_ended:
            self._release_ended()
        if policy.collect_above and self._segments.excess(policy) > 0:
            shared = self._heap.shared_pools()
            for pool in shared:
                self._heap.coalesce(pool)
            self._segments.release_idle(shared, policy, self._heap.searches)

    def _reclaim_cached(self) -> None:
        """Make all cached memory available after the device refused a segment."""
        self.num_retries += 1
        if self.before_retry is not None:
            self.before_retry()
        self._coalesce_all()

    def _coalesce_all(self) -> None:
        self.num_waits += 1
        self._frees.poll(block_host=True)
        for pool in self._heap.pools.values():
            self._heap.coalesce(pool)

    def release_cached(self) -> None:
        """Release all wholly free segments, after waiting for recorded uses."""
        if not self._context.orders.capturing:
            self._release_free(self._heap.shared_pools())

    def close_private(self, id: PoolId, release: bool) -> None:
        """Close a MemPool: its memory is released now, if `release`, or as it becomes free."""
        pools = [p for p in self._heap.pools.values() if p.private is not None and p.private.id == id]
        for pool in pools:
            if pool.private is not None:
                pool.private.open = False
        if release and not self._context.orders.capturing:
            self._release_free(pools)

    def _release_free(self, pools: list[Pool]) -> None:
        self._coalesce_all()
        self._segments.release_free(pools)
        used = {block.pool for block in self._segments.blocks()}
        for pool in list(self._heap.pools.values()):  # closed MemPools that have no memory left
            if pool.private is not None and not pool.private.open and pool not in used:
                self._heap.forget(pool)
                self._segments.forget(pool.private.id)

    def end_stream(self, handle: int) -> None:
        """Register the pools of a destroyed stream. See Note [Ended streams]."""
        ended = self._heap.pools_of_stream(handle)
        self._ended_pools += ended
        if not ended:
            self._context.orders.forget(handle)

    def _release_ended(self) -> None:
        """Release cached memory of destroyed streams, except pools with allocated blocks and live MemPools."""
        private = {pool for pool in self._ended_pools if pool.private is not None and pool.private.open}
        ended = [pool for pool in self._ended_pools if pool not in private]
        for pool in ended:
            self._heap.coalesce(pool)
        self._segments.release_free(ended)
        used = private.union([block.pool for block in self._segments.blocks()])
        for pool in self._ended_pools:
            if pool not in used:
                self._heap.forget(pool)
                self._context.orders.forget(pool.stream)
        self._ended_pools = [pool for pool in self._ended_pools if pool in used]
        # doubling keeps the cost of scans linear
        self._many_ended = 2 * len(self._ended_pools) + _MAX_ENDED_POOLS


def request_too_large() -> OutOfMemoryError:
    """Return the error for a request that no device can serve."""
    return OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
