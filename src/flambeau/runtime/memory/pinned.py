"""`PinnedAllocator`: page-locked host memory that is reused once no copy needs it.

Pinning is expensive, so freed memory is kept. Sizes round up to 512 bytes, never to a power of two, and a kept
block serves a request only if at most an eighth of it (or 4 KiB) is wasted. A block that asynchronous copies use
waits, when freed, for an event on each stream of those copies; any other block is reused immediately. The setting
pinned_max_cached_size_mb caps what is kept: excess blocks are released immediately, the largest first; in the
capture of a CUDA graph, where the system can be given nothing back, with the first request or free after it.
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flambeau.core.errors import OutOfMemoryError
from flambeau.driver.protocol import Driver, HostMemory
from flambeau.runtime.memory.allocator_config import TOO_MUCH
from flambeau.runtime.memory.allocator_statistics import Tally, format_size
from flambeau.runtime.memory.free_list import FreeList, ListedBlock
from flambeau.runtime.memory.pending_frees import PendingFrees
from flambeau.runtime.memory.reentrant_lock import AllocatorLock
from flambeau.runtime.streams.stream_order import StreamClocks

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream

NO_ACCELERATOR = "Cannot access accelerator device when none is available."
ROUND = 512
SMALL_WASTE = 4096
_HOST = 0  # passed to observers where a stream is expected


class PinnedBlock(ListedBlock):
    """A piece of pinned memory.

    Attributes:
        uses: Stream handle -> stream, of the copies that use the block.
        hidden_uses: Stream handle -> stream, of copies that PyTorch's allocator does not learn of; see `record_use_at`.
    """

    __slots__ = ("hidden_uses", "memory", "ptr", "requested", "uses")

    def __init__(self, memory: HostMemory | None, size: int) -> None:
        super().__init__(size)
        self.memory = memory
        self.ptr = 0 if memory is None else memory.ptr
        self.requested = 0
        self.uses: dict[int, Stream] = {}
        self.hidden_uses: dict[int, Stream] = {}

    @property
    def all_uses(self) -> dict[int, Stream]:
        """Return all uses of the block, `uses` first."""
        return {**self.uses, **self.hidden_uses} if self.hidden_uses else self.uses


class PinnedAllocator:
    """The pinned memory of one machine. It belongs to no device, so allocation creates no context.

    `free` may be called from any thread, also by a destructor during `allocate`.

    Args:
        cap: The limit of cached bytes; None for no limit.
        orders: The happens-before order of the machine's streams.
    """

    def __init__(self, driver: Driver, cap: int | None = None, orders: StreamClocks | None = None) -> None:
        self._cap = cap
        self._driver = driver
        self._orders = StreamClocks() if orders is None else orders
        self._addresses: list[int] = []  # addresses of all blocks, sorted
        self._blocks: dict[int, PinnedBlock] = {}  # address -> block
        self._kept: FreeList[PinnedBlock] = FreeList()
        self._kept_bytes = 0
        self._pending_frees: PendingFrees[PinnedBlock] = PendingFrees(
            self._notify_pending_free if driver.observes_blocks else None
        )
        self._deferred: deque[PinnedBlock] = deque()
        self._lock = AllocatorLock(self._deferred, self._try_process_frees)
        self._closed = False
        self._figures = _Figures()

    @property
    def reserved_bytes(self) -> int:
        """Return the number of pinned bytes, in use or cached."""
        return self._figures.allocated_bytes.current

    def allocate(self, nbytes: int) -> PinnedBlock:
        """Return a block of at least `nbytes` bytes; 0 bytes are at address 0. Raises OutOfMemoryError."""
        if nbytes == 0:
            return PinnedBlock(None, 0)
        if nbytes >= TOO_MUCH:
            raise OutOfMemoryError(
                "CUDA error: out of memory. Tried to pin more than 1EB of the host's memory."
            )
        with self._lock as nested:
            block = self._find_block(-nbytes // ROUND * -ROUND, nested)
            self._figures.use(block, 1)
        block.requested = nbytes
        if self._driver.observes_blocks:
            self._driver.block_alloc(block.ptr, nbytes, _HOST)
        return block

    def record_use(self, block: PinnedBlock, stream: Stream) -> None:
        """Record that a copy on `stream` uses the block. Reuse after a free waits for that stream."""
        block.uses[stream.handle] = stream

    def record_use_at(self, ptr: int, stream: Stream) -> None:
        """Record that a copy on `stream` uses the memory at an address, if it belongs to a block.

        Only a pinned tensor's first address identifies its block to PyTorch's allocator. Here the block waits for all
        uses. Observers are notified of those that PyTorch's allocator would not wait for.
        """
        with self._lock:
            at = bisect_right(self._addresses, ptr)
            block = self._blocks[self._addresses[at - 1]] if at else None
        if block is not None and ptr < block.ptr + block.size:
            (block.uses if ptr == block.ptr else block.hidden_uses)[stream.handle] = stream

    def free(self, block: PinnedBlock) -> None:
        """Free a block. It can be reused when the copies that use it have finished."""
        if not block.size or self._closed:
            return
        if not block.all_uses:
            self._notify_free(block)
        self._deferred.append(block)
        self._try_process_frees()

    def empty_cache(self) -> None:
        """Return all cached memory to the system, after waiting for the copies that use it."""
        with self._lock as nested:
            if not nested and not self._closed and not self._orders.capturing:
                self._release_kept()

    def keep_at_most(self, cap: int | None) -> None:
        """Set the limit of cached bytes."""
        with self._lock as nested:
            self._cap = cap
            if not nested and not self._closed:
                self._trim_to_cap()

    def close(self) -> None:
        """Close the allocator with its machine: later frees do nothing."""
        self._closed = True

    # -- figures ------------------------------------------------------------------------------------------
    def figures(self) -> dict[str, Any]:
        """Return the statistics of `torch.cuda.host_memory_stats`, as nested dictionaries."""
        with self._lock as nested:
            if not nested and not self._closed:
                self._poll()
            return self._figures.nested_statistics()

    def reset_peaks(self) -> None:
        with self._lock:
            for tally in self._figures.tallies().values():
                tally.reset_peak()

    def reset_accumulated(self) -> None:
        with self._lock:
            for tally in self._figures.tallies().values():
                tally.reset_accumulated()
            self._figures.alloc_time, self._figures.free_time = _Times(), _Times()

    # -- finding a block ----------------------------------------------------------------------------------
    def _find_block(self, size: int, nested: bool) -> PinnedBlock:
        if nested:  # a finalizer allocates during an allocation: use no shared state
            return self._new(size)
        self._poll()
        block = self._kept.best(size)
        if block is not None and block.size - size <= max(SMALL_WASTE, block.size // 8):
            self._kept.remove(block)
            self._kept_bytes -= block.size
            return block
        if not self._orders.capturing:
            with suppress(OutOfMemoryError):
                return self._new(size)
            self._release_kept()
        return self._new(size)

    def _new(self, size: int) -> PinnedBlock:
        begin = time.perf_counter_ns()
        try:
            memory = self._driver.host_alloc(size)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"CUDA error: out of memory. The host cannot pin {format_size(size)} more; "
                f"{format_size(self.reserved_bytes)} of pinned memory are in use. Pin less (fewer or smaller "
                "buffers, fewer DataLoader workers), or raise the limit on locked memory (ulimit -l). "
                f"The driver says: {error}"
            ) from None
        self._figures.alloc_time.add(time.perf_counter_ns() - begin)
        block = PinnedBlock(memory, size)
        self._figures.hold(block, 1)
        insort(self._addresses, block.ptr)
        self._blocks[block.ptr] = block
        return block

    def _release_kept(self) -> None:
        self._poll(wait=True)
        self._trim(0)

    def _trim(self, most: int) -> None:
        """Return cached memory to the system, the largest blocks first, until at most `most` bytes are cached.

        During a capture nothing is returned.
        """
        while self._kept_bytes > most and not self._orders.capturing:
            block = self._kept.best(self._kept.largest())
            assert block is not None
            begin = time.perf_counter_ns()
            if block.memory is not None:
                self._driver.host_free(block.memory)
            self._figures.free_time.add(time.perf_counter_ns() - begin)
            self._kept.remove(block)
            self._kept_bytes -= block.size
            self._figures.hold(block, -1)
            self._addresses.remove(block.ptr)
            del self._blocks[block.ptr]

    def _try_process_frees(self) -> None:
        if not self._closed:
            self._lock.serve(self._process_frees)

    def _process_frees(self) -> None:
        while self._deferred:
            block = self._deferred.popleft()
            if uses := block.all_uses:
                self._pending_frees.wait(block, uses.values())
            else:
                self._keep(block)
        self._trim_to_cap()

    def _poll(self, wait: bool = False) -> None:
        self._process_frees()
        if self._pending_frees.waiting:
            for over in self._pending_frees.done(block_host=wait):
                over.block.uses, over.block.hidden_uses = {}, {}
                self._notify_free(over.block, over.events)
                self._keep(over.block)
            self._trim_to_cap()

    def _trim_to_cap(self) -> None:
        if self._cap is not None:
            self._trim(self._cap)

    def _keep(self, block: PinnedBlock) -> None:
        self._kept.add(block)
        self._kept_bytes += block.size
        self._figures.use(block, -1)

    def _notify_free(self, block: PinnedBlock, after: Sequence[int] = ()) -> None:
        if self._driver.observes_blocks:
            self._driver.block_free(block.ptr, block.requested, _HOST, after)

    def _notify_pending_free(self, block: PinnedBlock, events: Sequence[int]) -> None:
        """Notify the driver that a freed block waits for these events of its uses; those of `hidden_uses` are last."""
        self._driver.block_wait(block.ptr, block.requested, _HOST, events[: len(block.uses)])


class _Figures:
    """Counters of pinned memory: bytes and blocks obtained from the system, and those in use."""

    def __init__(self) -> None:
        self.allocations, self.allocated_bytes = Tally(), Tally()
        self.active_requests, self.active_bytes = Tally(), Tally()
        self.alloc_time, self.free_time = _Times(), _Times()

    def hold(self, block: PinnedBlock, change: int) -> None:
        self.allocations.add(change)
        self.allocated_bytes.add(change * block.size)

    def use(self, block: PinnedBlock, change: int) -> None:
        self.active_requests.add(change)
        self.active_bytes.add(change * block.size)

    def tallies(self) -> dict[str, Tally]:
        return {
            "allocations": self.allocations, "allocated_bytes": self.allocated_bytes,
            "active_requests": self.active_requests, "active_bytes": self.active_bytes,
        }  # fmt: skip

    def nested_statistics(self) -> dict[str, Any]:
        return {
            **{name: tally.figures() for name, tally in self.tallies().items()},
            "num_host_alloc": self.allocations.allocated,
            "num_host_free": self.allocations.freed,
            "host_alloc_time": self.alloc_time.figures(),
            "host_free_time": self.free_time.figures(),
        }


class _Times:
    """The durations of all calls of one driver function: number, total, shortest and longest."""

    __slots__ = ("_count", "_least", "_most", "_total")

    def __init__(self) -> None:
        self._count = self._total = self._most = self._least = 0

    def add(self, time_ns: int) -> None:
        self._least = time_ns if not self._count else min(self._least, time_ns)
        self._most = max(self._most, time_ns)
        self._total += time_ns
        self._count += 1

    def figures(self) -> dict[str, int]:
        """Return the durations in microseconds, under PyTorch's names."""
        total, least, most = (ns // 1000 for ns in (self._total, self._least, self._most))
        return {
            "total": total, "max": most, "min": least, "count": self._count,
            "avg": total // self._count if self._count else 0,
        }  # fmt: skip
