"""The caching allocator: device memory that is reused without a driver call.

It follows the policy that PyTorch documents (`allocator_config.py`). Sizes are rounded up to 512 bytes. Requests of
at most 1 MiB are served from 2 MiB segments, larger ones below 10 MiB from 20 MiB segments. Still larger ones get a
separate segment, rounded up to 2 MiB. Each stream has separate pools: a block returns to the stream that allocated
it. A request takes the smallest free block that fits; the remainder is split off, and free neighbours are coalesced
(`heap.py`). Only wholly free segments are released (`segments.py`).

Read `fast_path.py` for the calls that most programs make. `deferred_frees.py` has blocks that cannot be reused yet,
`growth.py` says how reserved memory grows and shrinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.allocator_config import SMALL_REQUEST, TOO_MUCH, WITHIN, Policy, from_environment
from flambeau.runtime.memory.allocator_statistics import Ledger
from flambeau.runtime.memory.blocks import Block, Pool, pop_newest, prepare_entries
from flambeau.runtime.memory.deferred_frees import DeferredFrees
from flambeau.runtime.memory.event_log import LONG, EventLog
from flambeau.runtime.memory.fast_path import (
    Free,
    allocate_function,
    free_function,
    observed_allocate_function,
)
from flambeau.runtime.memory.growth import Growth, request_too_large
from flambeau.runtime.memory.history import Columns, Recording
from flambeau.runtime.memory.log_entries import CUT, LARGE, LOOK, SMALL
from flambeau.runtime.memory.placement import DEFAULT, heap_of
from flambeau.runtime.memory.private_pool import PoolId, PrivatePool
from flambeau.runtime.memory.reentrant_lock import AllocatorLock
from flambeau.runtime.memory.resources import Resource
from flambeau.runtime.memory.segments import Segments
from flambeau.runtime.streams.stream_order import StreamActivity

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream

_MAX_FAST_LISTS: Final = 16384  # (stream, request) pairs that find their size class directly


class CachingAllocator:
    """The memory of one CUDA device.

    `allocate`, `allocate_output` and `free` are attributes: they are exchanged for functions that notify the driver
    or a recording when one is present.

    Attributes:
        allocate: Return a block of at least `nbytes` bytes for a stream, aligned to 512. 0 bytes give a block at
            address 0. Raises OutOfMemoryError, without effect on existing blocks.
        allocate_output: Like `allocate`, for memory that the next launch overwrites.
        free: Take a block back. Needs no lock and may run in any thread. Does nothing after the context was closed.
        record_stream, record_use, share: Record a use of a block by another stream (`DeferredFrees`).
        context: The device context.
        policy: The settings.
        growth: Allocates and releases segments.
        lock: Under this lock no other thread starts a search. Reports hold it while they read all blocks.
        explains_oom: True if out-of-memory errors list the largest allocations.
        oom_advice: Returns the suggestion of an out-of-memory error; None if there is none.
        oversize_allocations, oversize_segments: Statistics of blocks and segments above `max_split_size`.
    """

    __slots__ = (
        "_driver", "_empty", "_entries", "_event_log", "_fast_lists", "_free_wrapper", "_frees", "_heap", "_index",
        "_many_streams", "_orders", "_raw_blocks", "_rounds_plainly", "_segments", "_thread_pools", "allocate",
        "allocate_output", "context", "explains_oom", "free", "growth", "lock", "oom_advice", "oversize_allocations",
        "oversize_segments", "policy", "record_stream", "record_use", "share",
    )  # fmt: skip

    def __init__(self, context: Context, policy: Policy | None = None, placement: str = DEFAULT) -> None:
        self.context = context
        self._driver = context.driver
        self._index = context.driver_index
        self._orders = context.orders
        inbox: deque[Block] = deque()
        self.lock = AllocatorLock(inbox, lambda: self._frees.try_process())
        self._event_log = EventLog(self.lock)
        self._entries = self._event_log.entries
        self._heap = heap_of(placement, self._entries, self._orders, context.index)
        self._fast_lists = self._heap.size_classes
        self._apply_config(from_environment() if policy is None else policy)
        self._segments = Segments(self._driver, self._index, self._event_log, self._heap.is_ordered_after)
        frees = self._frees = DeferredFrees(context, inbox, self.lock, self._entries, self._segments)
        self.record_stream, self.record_use, self.share = frees.record_stream, frees.record_use, frees.share
        self.growth = Growth(context, self._event_log, self._heap, self._segments, frees, self._explain_oom)
        self._thread_pools: dict[ref[Thread], PrivatePool] = {}  # live thread -> its MemPool
        self._raw_blocks: dict[int, Block] = {}  # address -> block of `allocate_raw`
        self._many_streams = False
        self.oversize_allocations, self.oversize_segments = frees.oversize, self._segments.oversize
        self.explains_oom = True
        self.oom_advice: Callable[[CachingAllocator, Pool, int], str] | None = None
        self._empty = _empty_block()
        if self.policy.fraction < 1:
            self.set_memory_fraction(self.policy.fraction)
        self._free_wrapper: Callable[[Free], Free] | None = None  # set by `wrap_free`
        parts = self._fast_lists, self._event_log, self._allocate_slow
        if self._driver.observes_blocks:
            self.allocate = observed_allocate_function(*parts, self._driver, written=False)
            self.allocate_output = observed_allocate_function(*parts, self._driver, written=True)
        else:
            self.allocate = self.allocate_output = allocate_function(*parts)
        self._select_free()

    def _select_free(self) -> None:
        free = free_function(self._driver, self.context, self._event_log, self._many_streams)
        self.free: Free = free if self._free_wrapper is None else self._free_wrapper(free)
        self._fast_lists.clear()

    def wrap_free(self, wrapper: Callable[[Free], Free] | None) -> None:
        """Replace `free` by `wrapper(free)`, for memory hooks; None removes the wrapper."""
        self._free_wrapper = wrapper
        with self.lock:
            self._select_free()

    @property
    def _fast_path_is_open(self) -> bool:
        """Return True if size classes may serve requests directly. See Note [The hot path]."""
        return not (self._thread_pools or self._event_log.recording is not None)

    # -- finding a block ----------------------------------------------------------------------------------
    def _allocate_slow(self, nbytes: int, stream: int) -> Block:
        if nbytes == 0:
            return self._empty
        lock, frees = self.lock, self._frees
        lock.acquire()
        nested, lock.busy = lock.busy, True
        try:
            if nested:
                block = self.growth.uncached_block(nbytes, stream, self.policy)
            else:
                if frees.inbox or frees.waiting or frees.to_release:
                    frees.poll()
                if len(self._entries) > LONG:
                    self._event_log.settle()
                block = self._find_block(nbytes, stream)
        finally:
            lock.busy = nested
            lock.release()
            if frees.inbox and not nested:
                frees.try_process()
        return block

    def _find_block(self, nbytes: int, stream: int) -> Block:
        policy = self.policy
        private = self._thread_pools.get(ref(current_thread())) if self._thread_pools else None
        if self._rounds_plainly:
            size = (nbytes - 1 | WITHIN) + 1
        elif policy.caching or (
            private is not None and self._orders.capturing
        ):  # a CUDA graph keeps its memory
            size = policy.round_up(nbytes)
        else:
            return self.growth.uncached_block(nbytes, stream, policy, relieve=True)
        kind = SMALL if size <= SMALL_REQUEST else LARGE
        pool = self._heap.pools.get((stream, kind, private))
        if pool is None:
            pool = self._new_pool(stream, kind, private)
        block = split_entry = None
        size_class = pool.size_classes.get(size)
        # oversize blocks are counted one by one
        if size_class is not None and not (policy.max_split and policy.is_oversize(size)):
            if self._fast_path_is_open:
                if len(self._fast_lists) >= _MAX_FAST_LISTS:
                    self._fast_lists.clear()
                self._fast_lists[stream, nbytes] = size_class
            block = pop_newest(size_class)
        if block is None:
            block = self._take_block(pool, size, nbytes)
            pool = block.pool  # a MemPool with use_on_oom may serve it
            if block.size - size >= pool.min_remainder and not (
                policy.max_split and policy.keeps_whole(size)
            ):
                split_entry = self._heap.split(block, size)
            if policy.max_split and policy.is_oversize(block.size):
                self._frees.add_oversize(block)
            else:
                block.free_destination = block.default_list = pool.free_destination(size)
        prepare_entries(block, nbytes)
        if self._event_log.recording is None:  # `book`, written inline for speed
            self._entries.append(block.alloc_entry)
        else:
            self._event_log.book(block)
        if split_entry is not None:  # logged last, so that both parts are never free in the log
            self._entries.append(split_entry)
        return block

    def _take_block(self, pool: Pool, size: int, nbytes: int) -> Block:
        """Remove and return a free block of at least `size` bytes, of a new segment if there is none."""
        heap, policy, unmerged = self._heap, self.policy, pool.unmerged
        while unmerged:
            heap.coalesce_block(pool, unmerged.pop())
        block = heap.take(pool, size, policy) if policy.max_split else pool.free_list.take(size)
        if self._many_streams and (block is None or block.size - size >= pool.min_remainder):
            block = heap.take_from_other_streams(pool, size, block, policy)
        return self._find_beyond_pool(pool, size, nbytes) if block is None else block

    def _new_pool(self, stream: int, kind: int, private: PrivatePool | None) -> Pool:
        if not self._many_streams and any(other[0] != stream for other in self._heap.pools):
            self._enable_stream_order()
        return self._heap.new_pool(stream, kind, private, self.policy)

    def stream_created(self) -> None:
        """Enable the tracking of stream order: a second stream exists."""
        if not self._many_streams:
            with self.lock:
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
            raise request_too_large()
        heap, policy = self._heap, self.policy
        heap.searches += 1
        if self._many_streams and heap.reuse_from_other_streams(pool):
            block = heap.take_exact_or_best(pool, size, policy)
            if block is not None:
                return block
        heap.coalesce(pool, None if policy.max_split else size)
        return heap.take(pool, size, policy) or self.growth.segment_block(pool, size, nbytes, policy)

    def _explain_oom(self, pool: Pool, size: int) -> str:
        if not self.explains_oom:
            return "out of memory"
        # imported here because it is seldom needed
        explain = import_module("flambeau.runtime.memory_reports.oom_message")
        return cast(str, explain.out_of_memory(self, pool, size))

    # -- release ------------------------------------------------------------------------------------------
    def stream_destroyed(self, handle: int) -> None:
        """Register the pools of a destroyed stream. See Note [Ended streams]."""
        with self.lock:
            self.growth.end_stream(handle)

    def empty_cache(self) -> None:
        """Release all wholly free segments, after waiting for recorded uses. Does nothing during a capture."""
        if self.context.closed:
            return
        with self.lock as nested:
            if not nested:
                self.growth.release_cached()

    # -- MemPools, resources, memory by address -----------------------------------------------------------
    def route(self, private: PrivatePool | None) -> PrivatePool | None:
        """Set the MemPool for this thread's requests; None for the shared pools. Returns the previous one."""
        thread = current_thread()
        with self.lock:
            before = self._thread_pools.pop(ref(thread), None)
            if private is not None:
                self._thread_pools[ref(thread, self._thread_pools.pop)] = private
            self._fast_lists.clear()
        return before

    def release_private(self, id: PoolId) -> None:
        """Close a MemPool: its memory is released as it becomes free."""
        if self.context.closed:
            return
        with self.lock as nested:
            self.growth.close_private(id, release=not nested)

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
        with self.lock:
            self.set_policy_part(caching=on)

    def set_policy(self, policy: Policy) -> None:
        """Replace the settings, except caching and the memory fraction."""
        with self.lock:
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
        with self.lock:
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
            "num_alloc_retries": self.growth.num_retries,
            "num_ooms": self.growth.num_ooms,
            "num_sync_all_streams": self.growth.num_waits,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_oom_rejections": 0,  # counts for throw_on_cudamalloc_oom, which changes nothing here
        }

    def reset_peaks(self) -> None:
        with self.lock:
            self.ledger().reset_peaks()
            for tally in (self.oversize_allocations, *self._segments.tallies()):
                tally.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset the counters and the total increases and decreases to 0."""
        with self.lock:
            self.ledger().reset_accumulated()
            for tally in (self.oversize_allocations, *self._segments.tallies()):
                tally.reset_accumulated()
            self.growth.reset_counters()

    # -- history ------------------------------------------------------------------------------------------
    def record(self, recording: Recording | None) -> None:
        """Record a history with these settings from now on; None stops recording."""
        with self.lock:
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
        """Log that the program took a snapshot."""
        self._event_log.write(self._empty.pool.entry(LOOK, 0, 0, 0))

    def frames_at(self, ptr: int) -> list[dict[str, Any]] | None:
        """Return the stack of the call that allocated the block at an address; None if it was not recorded."""
        for block in self._segments.blocks():
            if block.ptr == ptr and block.frames is not None:
                return cast(list[dict[str, Any]], block.frames.frames())
        return None

    def segments(self) -> Iterator[list[Block]]:
        """Yield the blocks of each segment, in address order. Reports use this."""
        return self._segments.runs()

    def is_expandable(self, ptr: int) -> bool:
        """Return True if an address lies in an expandable segment."""
        return self._segments.is_expandable(ptr)

    def waiting(self) -> set[Block]:
        """Return the freed blocks that wait for other streams. Reports use this."""
        with self.lock:
            return self._frees.waiting_blocks()

    def free_blocks(self) -> set[Block]:
        """Return the blocks that a request could get. Reports use this."""
        with self.lock:
            return self._heap.free_blocks().union(self._frees.to_release)


def _empty_block() -> Block:
    block = Block(0, 0, Pool(SMALL, StreamActivity(0), None, set()), 0)
    # an empty deque that discards what is appended
    block.free_destination = block.default_list = deque(maxlen=0)
    block.alloc_entry = block.free_entry = block.pool.entry(CUT, 0, 0, 0)  # an entry without effect
    return block
