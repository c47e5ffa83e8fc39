"""The caching allocator: device memory that is reused without a driver call.

It follows the policy that PyTorch documents (`allocator_config.py`). Sizes are rounded up to 512 bytes. Requests of
at most 1 MiB are served from 2 MiB segments, larger ones below 10 MiB from 20 MiB segments. Still larger ones get a
separate segment, rounded up to 2 MiB. Each stream has separate pools: a block returns to the stream that allocated
it. A request takes the smallest free block that fits; the remainder is split off, and free neighbours are coalesced
(`heap.py`). Only wholly free segments are released (`segments.py`).

# Note [The hot path]
A size that is requested repeatedly gets a size class: a stack of free blocks of that size. An allocation pops from
it and a free appends to it. Blocks of size classes are coalesced only when the heap would have to grow: small sizes
first, and only as many as needed. So a steady program hardly splits or coalesces. Pop and append are atomic and
need no lock. A free never takes a lock, so it may run in a destructor in any thread, even if the garbage collector
runs it during an allocation. `Block.free_destination` receives a freed block: a size class, the list of unmerged
blocks, or the deferred-free list for blocks that cannot be reused yet.

A history recording, and a MemPool that a thread allocates from, keep the table of fast lists empty. Then every
request takes the slow path, and the fast path need not check for them. A driver that observes blocks gets separate
functions (`_select_free`).

# Note [Ended streams]
Programs may create a stream per iteration. After a stream is destroyed, no request uses its pools. When many such
pools exist and another segment is needed, their memory is released, which waits for the device. It is not given to
unordered streams, because then races of the program would go unseen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.context import Context
from flambeau.runtime.memory.allocator_config import (
    ROUND,
    SMALL_REQUEST,
    TOO_MUCH,
    WITHIN,
    Policy,
    from_environment,
)
from flambeau.runtime.memory.blocks import Block, Pool, pop_newest, prepare_entries
from flambeau.runtime.memory.event_log import LONG, EventLog
from flambeau.runtime.memory.history import Columns, Recording
from flambeau.runtime.memory.log_entries import (
    CUT,
    DONE,
    DONE_PART,
    LARGE,
    LOOK,
    REFUSE,
    REQUEST,
    SMALL,
)
from flambeau.runtime.memory.pending_frees import PendingFrees, UseEvent
from flambeau.runtime.memory.placement import DEFAULT, heap_of
from flambeau.runtime.memory.private_pool import PoolId, PrivatePool
from flambeau.runtime.memory.reentrant_lock import AllocatorLock
from flambeau.runtime.memory.resources import Resource
from flambeau.runtime.memory.segments import Segments
from flambeau.runtime.memory.statistics import Ledger, Tally
from flambeau.runtime.streams.stream_order import NEVER, StreamActivity

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream

_MAX_ENDED_POOLS: Final = 64  # pools of ended streams that may gather
_MAX_FAST_LISTS: Final = 16384  # (stream, request) pairs that find their bin directly

Allocate = Callable[[int, "Stream"], Block]
Free = Callable[[Block], None]


class DeferredFreeList:
    """The destination of freed blocks that cannot be reused immediately."""

    __slots__ = ("_deferred", "_process_frees")

    def __init__(self, freed: deque[Block], receive: Callable[[], None]) -> None:
        self._deferred = freed
        self._process_frees = receive

    def append(self, block: Block, /) -> None:
        self._deferred.append(block)
        self._process_frees()


class CachingAllocator:
    """The memory of one CUDA device.

    `allocate`, `allocate_output` and `free` are attributes: they are exchanged for functions that notify the driver
    or a recording when one is present.

    Attributes:
        allocate: Return a block of at least `nbytes` bytes for a stream, aligned to 512. 0 bytes give a block at
            address 0. Raises OutOfMemoryError, without effect on existing blocks.
        allocate_output: Like `allocate`, for memory that the next launch overwrites.
        free: Take a block back. Needs no lock and may run in any thread. Does nothing after the context was closed.
        context: The device context.
        policy: The settings.
        explains_oom: True if out-of-memory errors list the largest allocations.
        oom_advice: Returns the suggestion of an out-of-memory error; None if there is none.
        before_retry: Called when the device refuses memory, to free some before the second attempt.
        oversize_allocations, oversize_segments: Statistics of blocks and segments above `max_split_size`.
        num_alloc_retries, num_ooms, num_sync_all_streams: Counters of `torch.cuda.memory_stats`.
    """

    __slots__ = (
        "_deferred",
        "_deferred_list",
        "_driver",
        "_empty",
        "_ended_pools",
        "_entries",
        "_event_log",
        "_fast_lists",
        "_free_wrapper",
        "_heap",
        "_index",
        "_lock",
        "_many_ended",
        "_many_streams",
        "_orders",
        "_oversize",
        "_pending_frees",
        "_raw_blocks",
        "_rounds_plainly",
        "_segments",
        "_thread_pools",
        "_unreleased",
        "_waiting",
        "allocate",
        "allocate_output",
        "before_retry",
        "context",
        "explains_oom",
        "free",
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "oom_advice",
        "oversize_allocations",
        "oversize_segments",
        "policy",
    )  # fmt: skip

    def __init__(self, context: Context, policy: Policy | None = None, placement: str = DEFAULT) -> None:
        self.context = context
        self._driver = context.driver
        self._index = context.driver_index
        self._orders = context.orders
        self._pending_frees: PendingFrees[Block] = PendingFrees(
            self._notify_pending_free if context.driver.observes_blocks else None
        )
        self._waiting = self._pending_frees.waiting
        self._ended_pools: list[Pool] = []  # see Note [Ended streams]
        self._many_ended = _MAX_ENDED_POOLS
        self._deferred: deque[Block] = deque()
        self._unreleased: list[Block] = []  # uncached blocks whose release is pending
        self._deferred_list = DeferredFreeList(self._deferred, self._try_process_frees)
        self._lock = AllocatorLock(self._deferred, self._try_process_frees)  # Note [Finalizers]
        self._event_log = EventLog(self._lock)
        self._entries = self._event_log.entries
        self._heap = heap_of(placement, self._entries, self._orders, context.index)
        self._fast_lists = self._heap.size_classes
        self._apply_config(from_environment() if policy is None else policy)
        self._segments = Segments(self._driver, self._index, self._event_log, self._heap.is_ordered_after)
        self._thread_pools: dict[ref[Thread], PrivatePool] = {}  # live thread -> its MemPool
        self._raw_blocks: dict[int, Block] = {}  # address -> block of `allocate_raw`
        self._many_streams = False
        self._oversize: set[Block] = set()  # oversize when they were allocated
        self.oversize_allocations, self.oversize_segments = Tally(), self._segments.oversize
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.explains_oom = True
        self.oom_advice: Callable[[CachingAllocator, Pool, int], str] | None = None
        self.before_retry: Callable[[], object] | None = None
        self._empty = self._empty_block()
        if self.policy.fraction < 1:
            self.set_memory_fraction(self.policy.fraction)
        self._free_wrapper: Callable[[Free], Free] | None = None  # set by `wrap_free`
        self.allocate: Allocate = self._allocate
        self.allocate_output: Allocate = self._allocate
        if self._driver.observes_blocks:
            self.allocate = self._allocate_observed(written=False)
            self.allocate_output = self._allocate_observed(written=True)
        self.free: Free = self._free
        self._select_free()

    # -- the hot path -------------------------------------------------------------------------------------
    def _allocate(self, nbytes: int, stream: Stream) -> Block:
        handle = stream.handle
        blocks = self._fast_lists.get((handle, nbytes))
        if not blocks:
            return self._allocate_slow(nbytes, handle)
        try:
            block = blocks.pop()
        except IndexError:  # another thread was faster
            return self._allocate_slow(nbytes, handle)
        if block.requested != nbytes:
            prepare_entries(block, nbytes)
        entries = self._entries
        entries.append(block.alloc_entry)
        if len(entries) > LONG:
            self._event_log.settle()
        return block

    def _allocate_observed(self, written: bool) -> Allocate:
        """Return an `_allocate` that also notifies the driver, and whether the next launch writes the block."""
        bins, entries, notify = self._fast_lists, self._entries, self._driver.block_alloc

        def allocate(nbytes: int, stream: Stream) -> Block:
            handle = stream.handle
            blocks = bins.get((handle, nbytes))
            try:
                block = blocks.pop()  # type: ignore[union-attr]
            except (AttributeError, IndexError):  # no such size, or another thread was faster
                block = self._allocate_slow(nbytes, handle)
                if not nbytes:
                    return block
            else:
                if block.requested != nbytes:
                    prepare_entries(block, nbytes)
                entries.append(block.alloc_entry)
                if len(entries) > LONG:
                    self._event_log.settle()
            notify(block.ptr, nbytes, handle, written, block.pool.token)
            return block

        return allocate

    def _free(self, block: Block) -> None:
        self._entries.append(block.free_entry)
        block.free_destination.append(block)

    def _free_with_tick(self, block: Block) -> None:
        """Free a block and store the logical time. See Note [Reuse by order]."""
        block.freed = block.pool.queue.freed(self._orders.now, block.freed)
        self._entries.append(block.free_entry)
        block.free_destination.append(block)

    def _free_observed(self) -> Callable[[Block], None]:
        """Return a `_free` that also notifies the driver."""
        context, orders, entries, notify = self.context, self._orders, self._entries, self._driver.block_free

        def free(block: Block) -> None:
            # else freed when these uses have finished
            if not block.uses and block.size and not context.closed:
                notify(block.ptr, block.requested, block.stream)
            block.freed = block.pool.queue.freed(orders.now, block.freed)
            entries.append(block.free_entry)
            block.free_destination.append(block)

        return free

    def _free_recorded(self, block: Block) -> None:
        """Free a block and notify the driver and the history recording."""
        if self._driver.observes_blocks and not block.uses:
            self._notify_free(block)
        block.freed = block.pool.queue.freed(self._orders.now, block.freed)
        recording = self._event_log.recording
        if recording is not None and block.size:
            self._entries.append((block.free_entry, *recording.notes(free=True)))
            block.frames = None
        else:
            self._entries.append(block.free_entry)
        block.free_destination.append(block)

    def _notify_free(self, block: Block, after: Sequence[int] = ()) -> None:
        if block.size and not self.context.closed:
            self._driver.block_free(block.ptr, block.requested, block.stream, after)

    def _notify_pending_free(self, block: Block, events: Sequence[int]) -> None:
        """Notify the driver that a freed block waits for these events."""
        self._driver.block_wait(block.ptr, block.requested, block.stream, events)

    def _select_free(self) -> None:
        """Set `free` to the cheapest function that serves all observers."""
        if self._event_log.recording is not None:
            self.free = self._free_recorded
        elif self._driver.observes_blocks:
            self.free = self._free_observed()
        else:
            self.free = self._free_with_tick if self._many_streams else self._free
        if self._free_wrapper is not None:
            self.free = self._free_wrapper(self.free)
        self._fast_lists.clear()

    def wrap_free(self, wrapper: Callable[[Free], Free] | None) -> None:
        """Wrap `free` for memory hooks; None removes the wrapper."""
        self._free_wrapper = wrapper
        with self._lock:
            self._select_free()

    @property
    def _fast_path_is_open(self) -> bool:
        """Return True if size classes may serve requests directly. See Note [The hot path]."""
        return not (self._thread_pools or self._event_log.recording is not None)

    # -- uses by other streams ----------------------------------------------------------------------------
    def record_stream(self, block: Block, stream: Stream) -> None:
        """Reuse the block, once it is freed, only after the work that `stream` has queued by then."""
        if stream.handle != block.stream and block.size:
            self._defer_free(block, stream.handle, stream)

    def record_use(self, block: Block, mark: UseEvent) -> None:
        """Reuse the block, once it is freed, only after this event. Of several events of one stream the last counts."""
        if block.size and (block.uses is None or not mark.is_before(block.uses.get(mark.key))):
            self._defer_free(block, mark.key, mark)

    def _defer_free(self, block: Block, key: int | UseEvent, use: Stream | UseEvent) -> None:
        if block.uses is None:
            block.uses = {}
        block.uses[key] = use
        block.free_entry = block.entry(REQUEST)  # still active
        block.free_destination = self._deferred_list

    def share(self, block: Block) -> None:
        """Apply the strict rule of Note [Reuse by order] until the next free, because another stream uses the block."""
        if block.size:
            block.shared = True
            block.free_destination = self._deferred_list

    def _try_process_frees(self) -> None:
        """Process deferred frees if the lock is free."""
        if not self.context.closed:
            self._lock.serve(self._process_frees)

    def _process_frees(self) -> None:
        while self._deferred:
            block = self._deferred.popleft()
            if block.uses:
                self._pending_frees.wait(block, block.uses.values())
            else:
                self._return_block(block)
        self._release_late()

    def _release_late(self) -> None:
        """Release segments that could not be released before, because the driver failed or a capture was under way."""
        late = self._unreleased
        while late and not self._orders.capturing:
            self._segments.release(late[-1])  # if this fails, the block stays in the list
            late.pop()

    def _poll(self, wait: bool = False) -> None:
        """Return the blocks whose pending uses have finished.

        Args:
            wait: True to block the host until all have finished.
        """
        self._process_frees()
        if self._waiting:
            for over in self._pending_frees.done(block_host=wait):
                block = over.block
                if self._driver.observes_blocks:
                    self._notify_free(block, over.events)
                self._entries.append(block.entry(DONE_PART if block.is_split else DONE))
                block.shared = True
                self._return_block(block)

    def _return_block(self, block: Block) -> None:
        if block.default_list is self._deferred_list:
            self._unreleased.append(block)
            self._release_late()
            return
        block.uses = None
        block.freed = NEVER if block.shared else self._orders.now
        block.shared = False
        block.use_trace = None
        if block in self._oversize:
            self._oversize.remove(block)
            self.oversize_allocations.add(-1)
        block.free_destination = block.default_list
        prepare_entries(block, block.requested)
        block.default_list.append(block)

    # -- finding a block ----------------------------------------------------------------------------------
    def _allocate_slow(self, nbytes: int, stream: int) -> Block:
        if nbytes == 0:
            return self._empty
        lock = self._lock
        lock.acquire()
        nested, lock.busy = lock.busy, True
        try:
            if nested:
                block = self._allocate_uncached(nbytes, stream)
            else:
                if self._deferred or self._waiting or self._unreleased:
                    self._poll()
                if len(self._entries) > LONG:
                    self._event_log.settle()
                block = self._find_block(nbytes, stream)
        finally:
            lock.busy = nested
            lock.release()
            if self._deferred and not nested:
                self._try_process_frees()
        return block

    def _find_block(self, nbytes: int, stream: int) -> Block:
        policy, limited = self.policy, 0
        private = self._thread_pools.get(ref(current_thread())) if self._thread_pools else None
        if self._rounds_plainly:
            size = (nbytes - 1 | WITHIN) + 1
        elif policy.caching or (
            private is not None and self._orders.capturing
        ):  # a CUDA graph keeps its memory
            size, limited = policy.rounded(nbytes), policy.max_split
        else:
            return self._allocate_uncached(nbytes, stream, relieve=True)
        kind = SMALL if size <= SMALL_REQUEST else LARGE
        heap = self._heap
        pool = heap.pools.get((stream, kind, private))
        if pool is None:
            pool = self._new_pool(stream, kind, private)
        block = split_entry = None
        size_class = pool.size_classes.get(size)
        if size_class is not None and not (
            limited and policy.is_oversize(size)
        ):  # oversize blocks are counted one by one
            if self._fast_path_is_open:
                if len(self._fast_lists) >= _MAX_FAST_LISTS:
                    self._fast_lists.clear()
                self._fast_lists[stream, nbytes] = size_class
            block = pop_newest(size_class)
        if block is None:
            unmerged = pool.unmerged
            while unmerged:
                heap.coalesce_block(pool, unmerged.pop())
            block = heap.take(pool, size, policy) if limited else pool.free_list.take(size)
            if self._many_streams and (block is None or block.size - size >= pool.min_remainder):
                block = heap.take_from_other_streams(pool, size, block, policy)
                size_class = pool.size_classes.get(size)
            if block is None:
                block = self._find_beyond_pool(pool, size, nbytes)
                pool = block.pool  # a MemPool with use_on_oom may serve it
                size_class = pool.size_classes.get(size)  # coalescing removes size classes without users
            if block.size - size >= pool.min_remainder and not (limited and policy.keeps_whole(size)):
                split_entry = heap.split(block, size)
            if limited and policy.is_oversize(block.size):
                block.free_destination, block.default_list = self._deferred_list, pool.unmerged
                self._oversize.add(block)
                self.oversize_allocations.add(1)
            elif size_class is None:
                block.free_destination = block.default_list = pool.free_destination(size)
            else:
                pool.size_class_users[size] += 1
                block.free_destination = block.default_list = size_class
        prepare_entries(block, nbytes)
        if self._event_log.recording is None:  # `book`, written inline for speed
            self._entries.append(block.alloc_entry)
        else:
            self._event_log.book(block)
        if split_entry is not None:  # logged last, so that both parts are never free in the log
            self._entries.append(split_entry)
        return block

    def _new_pool(self, stream: int, kind: int, private: PrivatePool | None) -> Pool:
        if not self._many_streams and any(other[0] != stream for other in self._heap.pools):
            self._enable_stream_order()
        return self._heap.new_pool(stream, kind, private, self.policy)

    def stream_created(self) -> None:
        """Enable the tracking of stream order: a second stream exists."""
        if not self._many_streams:
            with self._lock:
                self._enable_stream_order()

    def _enable_stream_order(self) -> None:
        """Store logical times of frees from now on; all free blocks count as freed now."""
        self._many_streams = True
        for block in self._segments.blocks():
            block.freed = max(block.freed, self._orders.now)
        self._select_free()

    def _find_beyond_pool(self, pool: Pool, size: int, nbytes: int) -> Block:
        """Return a free block of an ordered stream, of coalesced size classes, or of a new segment."""
        if size >= TOO_MUCH:
            raise _request_too_large()
        heap, policy = self._heap, self.policy
        heap.searches += 1
        if self._many_streams and heap.reuse_from_other_streams(pool):
            block = heap.take_exact_or_best(pool, size, policy)
            if block is not None:
                return block
        heap.coalesce(pool, None if policy.max_split else size)
        return heap.take(pool, size, policy) or self._allocate_segment(pool, size, nbytes)

    # -- when there is none -------------------------------------------------------------------------------
    def _allocate_segment(self, pool: Pool, size: int, nbytes: int) -> Block:
        """Return a free block of a new segment. If the device refuses, release cached memory and try again."""
        if self._orders.capturing:  # releasing memory waits for the device, which a capture forbids
            try:
                return self._new_segment_block(pool, size)
            except OutOfMemoryError:
                raise self._out_of_memory(pool, size, nbytes) from None
        if len(self._ended_pools) >= self._many_ended:
            self._release_ended()
        if self.policy.collect_above and self._segments.excess(self.policy) > 0:
            shared = self._heap.shared()
            for each in shared:
                self._heap.coalesce(each)
            self._segments.release_idle(shared, self.policy, self._heap.searches)
        try:
            return self._new_segment_block(pool, size)
        except OutOfMemoryError:
            self._reclaim_cached()
        block = self._heap.take(pool, size, self.policy)
        if block is not None:
            return block
        self._segments.release_free(self._heap.shared())
        try:
            return self._new_segment_block(pool, size)
        except OutOfMemoryError:
            block = self._heap.take_from_private_pools(pool, size, self.policy)
            if block is None:
                raise self._out_of_memory(pool, size, nbytes) from None
        return block

    def _reclaim_cached(self) -> None:
        """Make all cached memory available after the device refused a segment."""
        self.num_alloc_retries += 1
        if self.before_retry is not None:
            self.before_retry()
        self._coalesce_all()

    def _new_segment_block(self, pool: Pool, size: int) -> Block:
        return self._segments.grow(pool, size, self.policy, self._orders.now)

    def _out_of_memory(self, pool: Pool, size: int, nbytes: int) -> OutOfMemoryError:
        self.num_ooms += 1
        free, _ = self._driver.mem_info(self._index)  # stored in the entry's address field
        self._event_log.write(pool.entry(REFUSE, size, nbytes, free))
        self._event_log.settle()
        if not self.explains_oom:
            return OutOfMemoryError("out of memory")
        # imported here because it is seldom needed
        explain = import_module("flambeau.runtime.memory_reports.oom_message")
        return OutOfMemoryError(explain.out_of_memory(self, pool, size))

    def stream_destroyed(self, handle: int) -> None:
        """Register the pools of a destroyed stream. See Note [Ended streams]."""
        with self._lock:
            ended = self._heap.pools_of_stream(handle)
            self._ended_pools += ended
        if not ended:
            self._orders.forget(handle)

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
                self._orders.forget(pool.stream)
        self._ended_pools = [pool for pool in self._ended_pools if pool in used]
        self._many_ended = (
            2 * len(self._ended_pools) + _MAX_ENDED_POOLS
        )  # doubling keeps the cost of scans linear

    def _allocate_uncached(self, nbytes: int, stream: int, relieve: bool = False) -> Block:
        """Return a separate segment that is released as soon as it is freed. Touches no shared structure.

        Args:
            nbytes: The requested size.
            stream: The handle of the stream.
            relieve: True if cached memory may be released to make room.
        """
        size = -nbytes // ROUND * -ROUND
        if size >= TOO_MUCH:
            raise _request_too_large()
        kind = SMALL if size <= SMALL_REQUEST else LARGE
        pool = Pool(kind, self._orders.queue(stream), None, set())
        pool.token = -1  # no other block gets this memory
        try:
            block = self._segments.new(pool, size, self.policy, self._orders.now)
        except OutOfMemoryError:
            if not relieve or self._orders.capturing:
                raise self._out_of_memory(pool, size, nbytes) from None
            self._reclaim_cached()
            self._segments.release_free(self._heap.shared())
            return self._allocate_uncached(nbytes, stream)
        block.free_destination = block.default_list = self._deferred_list
        prepare_entries(block, nbytes)
        self._event_log.book(block)
        return block

    def _coalesce_all(self) -> None:
        self.num_sync_all_streams += 1
        self._poll(wait=True)
        for pool in self._heap.pools.values():
            self._heap.coalesce(pool)

    def empty_cache(self) -> None:
        """Release all wholly free segments, after waiting for recorded uses. Does nothing during a capture."""
        if self.context.closed:
            return
        with self._lock as nested:
            if not nested and not self._orders.capturing:
                self._coalesce_all()
                self._segments.release_free(self._heap.shared())
                self._forget_closed()

    # -- MemPools, resources, memory by address -----------------------------------------------------------
    def route(self, private: PrivatePool | None) -> PrivatePool | None:
        """Set the MemPool for this thread's requests; None for the shared pools. Returns the previous one."""
        thread = current_thread()
        with self._lock:
            before = self._thread_pools.pop(ref(thread), None)
            if private is not None:
                self._thread_pools[ref(thread, self._thread_pools.pop)] = private
            self._fast_lists.clear()
        return before

    def release_private(self, id: PoolId) -> None:
        """Close a MemPool: its memory is released as it becomes free."""
        if self.context.closed:
            return
        with self._lock as nested:
            pools = [p for p in self._heap.pools.values() if p.private is not None and p.private.id == id]
            for pool in pools:
                if pool.private is not None:
                    pool.private.open = False
            if not nested and not self._orders.capturing:
                self._coalesce_all()
                self._segments.release_free(pools)
                self._forget_closed()

    def _forget_closed(self) -> None:
        """Remove the pools of closed MemPools that have no memory left."""
        used = {block.pool for block in self._segments.blocks()}
        for pool in list(self._heap.pools.values()):
            if pool.private is not None and not pool.private.open and pool not in used:
                self._heap.forget(pool)
                self._segments.forget(pool.private.id)

    def replace(self, source: Resource) -> None:
        """Request each block from `source` from now on.

        Raises:
            RuntimeError: If memory was allocated already.
        """
        if self.num_device_alloc:
            raise RuntimeError("Can't swap an already initialized allocator")
        self._segments.source = source
        self.set_caching(False)

    @property
    def source(self) -> Resource:
        """Return the resource from which segments are allocated."""
        return self._segments.source

    def set_caching(self, on: bool) -> None:
        """Switch the caching of freed memory on or off."""
        with self._lock:
            self.set_policy_part(caching=on)

    def set_policy(self, policy: Policy) -> None:
        """Replace the settings, except caching and the memory fraction."""
        with self._lock:
            self._apply_config(policy.with_(caching=self.policy.caching, fraction=self.policy.fraction))

    def set_policy_part(self, **changes: Any) -> None:
        """Change some of the settings."""
        self._apply_config(self.policy.with_(**changes))

    def _apply_config(self, policy: Policy) -> None:
        self.policy = policy
        self._rounds_plainly = policy.caching and not (
            policy.divisions or policy.max_split
        )  # rounding needs no settings
        self._heap.apply_config(policy)
        self._fast_lists.clear()

    def allocate_raw(self, nbytes: int, stream: Stream) -> int:
        """Return the address of allocated memory that stays allocated until `free_raw`."""
        block = self.allocate(nbytes, stream)
        self.share(block)  # the streams that use it are unknown
        if block.size:
            self._raw_blocks[block.ptr] = block
        return block.ptr

    def free_raw(self, ptr: int) -> bool:
        """Free memory of `allocate_raw`. Returns False if the address is not one that it returned."""
        block = self._raw_blocks.pop(ptr, None)
        if block is not None:
            self.free(block)
        return block is not None

    # -- limits -------------------------------------------------------------------------------------------
    @property
    def memory_fraction(self) -> float:
        return self.policy.fraction

    @property
    def limit(self) -> int | None:
        """Return the largest number of reserved bytes; None for the capacity of the device."""
        return self._segments.limit

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a fraction, from 0 to 1, of the device's memory."""
        total = self._driver.device_properties(self._index).total_memory
        with self._lock:
            self.set_policy_part(fraction=fraction)
            self._segments.limit = int(total * fraction)

    # -- figures ------------------------------------------------------------------------------------------
    def allocated_bytes(self) -> int:
        """Return the bytes of allocated blocks, after rounding."""
        return self._event_log.allocated_bytes()

    def reserved_bytes(self) -> int:
        """Return the bytes of all segments."""
        return self._segments.reserved

    @property
    def num_device_alloc(self) -> int:
        """Return the number of allocation calls to the driver."""
        return self._segments.calls.allocated

    @property
    def num_device_free(self) -> int:
        """Return the number of free calls to the driver."""
        return self._segments.calls.freed

    def ledger(self) -> Ledger:
        """Return the current statistics. See Note [The journal] in event_log.py."""
        return self._event_log.ledger()

    def private_statistics(self) -> dict[PoolId, dict[str, dict[str, int]]]:
        """Return MemPool id -> kind of pool -> bytes of its segments."""
        return self._segments.private_statistics()

    def counters(self) -> dict[str, int]:
        """Return the counters of `torch.cuda.memory_stats`."""
        return {
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_oom_rejections": 0,  # counts for throw_on_cudamalloc_oom, which changes nothing here
        }

    def reset_peaks(self) -> None:
        with self._lock:
            self.ledger().reset_peaks()
            for tally in (self.oversize_allocations, *self._segments.tallies()):
                tally.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset the counters and the total increases and decreases to 0."""
        with self._lock:
            self.ledger().reset_accumulated()
            for tally in (self.oversize_allocations, *self._segments.tallies()):
                tally.reset_accumulated()
            self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0

    # -- history ------------------------------------------------------------------------------------------
    def record(self, recording: Recording | None) -> None:
        """Record a history from now on; None stops it."""
        with self._lock:
            self._event_log.record(recording)
            if recording is None:
                for block in self._segments.blocks():
                    block.frames = None
            self._select_free()

    @property
    def recording(self) -> Recording | None:
        return self._event_log.recording

    def history(self) -> Columns:
        """Return the recorded events, oldest first, as far back as they are kept."""
        return self._event_log.history()

    def log_snapshot(self) -> None:
        """Log that a snapshot is taken."""
        self._event_log.write(self._empty.pool.entry(LOOK, 0, 0, 0))

    def frames_at(self, ptr: int) -> list[dict[str, Any]] | None:
        """Return the stack of the call that allocated the block at an address; None if it was not recorded."""
        for block in self._segments.blocks():
            if block.ptr == ptr and block.frames is not None:
                return cast(list[dict[str, Any]], block.frames.frames())
        return None

    @property
    def lock(self) -> AllocatorLock:
        """Return the lock under which no other thread starts a search. Reports hold it while they read all blocks."""
        return self._lock

    def segments(self) -> Iterator[list[Block]]:
        """Yield the blocks of each segment, in address order. For reports."""
        return self._segments.runs()

    def is_expandable(self, ptr: int) -> bool:
        """Return True if an address lies in an expandable segment."""
        return self._segments.is_expandable(ptr)

    def waiting(self) -> set[Block]:
        """Return the freed blocks that wait for other streams. For reports."""
        with self._lock:
            return {*self._waiting, *[block for block in list(self._deferred) if block.uses]}

    def free_blocks(self) -> set[Block]:
        """Return the blocks that a request could get. For reports."""
        with self._lock:
            return self._heap.free_blocks().union(self._unreleased)

    # -- the rest -----------------------------------------------------------------------------------------
    def _empty_block(self) -> Block:
        block = Block(0, 0, Pool(SMALL, StreamActivity(0), None, set()), 0)
        block.free_destination = block.default_list = deque(maxlen=0)  # discards blocks
        block.alloc_entry = block.free_entry = block.pool.entry(CUT, 0, 0, 0)  # an entry without effect
        return block


def _request_too_large() -> OutOfMemoryError:
    return OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
