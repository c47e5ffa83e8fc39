"""The functions of a caching allocator that most calls run: allocation from a size class, and free.

# Note [The hot path]
A size that is requested repeatedly gets a size class: a stack of free blocks of that size. An allocation pops from
it and a free appends to it. Blocks of size classes are coalesced only when the heap would have to grow: small sizes
first, and only as many as needed. So a steady program hardly splits or coalesces. Pop and append are atomic and
need no lock. A free never takes a lock, so it may run in a destructor in any thread, even if the garbage collector
runs it during an allocation. `Block.free_destination` receives a freed block: a size class, the list of unmerged
blocks, or the deferred frees (`deferred_frees.py`) for blocks that cannot be reused yet.

A history recording, and a MemPool that a thread allocates from, keep the table of fast lists empty. Then every
request takes the slow path, and the fast path need not check for them. A driver that observes blocks gets separate
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flambeau.driver.protocol import Driver
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.blocks import Block, prepare_entries
from flambeau.runtime.memory.event_log import LONG, EventLog

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream

Allocate = Callable[[int, "Stream"], Block]
Free = Callable[[Block], None]
AllocateSlow = Callable[[int, int], Block]
FastLists = dict[tuple[int, int], list[Block]]


def allocate_function(fast_lists: FastLists, log: EventLog, allocate_slow: AllocateSlow) -> Allocate:
    """Return a function that allocates from the fast lists, and calls `allocate_slow` where they are empty.

    Args:
        fast_lists: (stream, requested bytes) -> stack of free blocks.
        log: The event log.
        allocate_slow: Allocates a number of bytes for the handle of a stream.
    """
    entries = log.entries

    def allocate(nbytes: int, stream: Stream) -> Block:
        handle = stream.handle
        blocks = fast_lists.get((handle, nbytes))
        if not blocks:
            return allocate_slow(nbytes, handle)
        try:
            block = blocks.pop()
        except IndexError:  # another thread was faster
            return allocate_slow(nbytes, handle)
        if block.requested != nbytes:
            prepare_entries(block, nbytes)
        entries.append(block.alloc_entry)
        if len(entries) > LONG:
            log.settle()
        return block

    return allocate


def observed_allocate_function(
    fast_lists: FastLists, log: EventLog, allocate_slow: AllocateSlow, driver: Driver, *, written: bool
) -> Allocate:
    """Return an `allocate_function` that also notifies the driver, and whether the next launch writes the block."""
    entries, notify = log.entries, driver.block_alloc

    def allocate(nbytes: int, stream: Stream) -> Block:
        handle = stream.handle
        blocks = fast_lists.get((handle, nbytes))
        try:
            block = blocks.pop()  # type: ignore[union-attr]
        except (AttributeError, IndexError):  # no such size, or another thread was faster
            block = allocate_slow(nbytes, handle)
            if not nbytes:
                return block
        else:
            if block.requested != nbytes:
                prepare_entries(block, nbytes)
            entries.append(block.alloc_entry)
            if len(entries) > LONG:
                log.settle()
        notify(block.ptr, nbytes, handle, written, block.pool.token)
        return block

    return allocate


def free_function(driver: Driver, context: Context, log: EventLog, many_streams: bool) -> Free:
    """Return the cheapest function that frees a block and serves all observers.

    Args:
        driver: The driver of an open context; the context's own refuses calls while it is suspended.
        context: The device context.
        log: The event log.
        many_streams: True to store the logical time of each free. See Note [Reuse by order].
    """
    if log.recording is not None:
        return _recorded_free(driver, context, log)
    if driver.observes_blocks:
        return _observed_free(driver, context, log)
    return _timed_free(context, log) if many_streams else _plain_free(log)


def _plain_free(log: EventLog) -> Free:
    entries = log.entries

    def free(block: Block) -> None:
        entries.append(block.free_entry)
        block.free_destination.append(block)

    return free


def _timed_free(context: Context, log: EventLog) -> Free:
    entries, orders = log.entries, context.orders

    def free(block: Block) -> None:
        block.freed = block.pool.queue.time_of_free(orders.now, block.freed)
        entries.append(block.free_entry)
        block.free_destination.append(block)

    return free


def _observed_free(driver: Driver, context: Context, log: EventLog) -> Free:
    entries, orders, notify = log.entries, context.orders, driver.block_free

    def free(block: Block) -> None:
        # else the driver is notified when these uses have finished
        if not block.uses and block.size and not context.closed:
            notify(block.ptr, block.requested, block.stream)
        block.freed = block.pool.queue.time_of_free(orders.now, block.freed)
        entries.append(block.free_entry)
        block.free_destination.append(block)

    return free


def _recorded_free(driver: Driver, context: Context, log: EventLog) -> Free:
    entries, orders = log.entries, context.orders

    def free(block: Block) -> None:
        if driver.observes_blocks and not block.uses and block.size and not context.closed:
            driver.block_free(block.ptr, block.requested, block.stream)
        block.freed = block.pool.queue.time_of_free(orders.now, block.freed)
        recording = log.recording
        if recording is not None and block.size:
            entries.append((block.free_entry, *recording.notes(free=True)))
            block.frames = None
        else:
            entries.append(block.free_entry)
        block.free_destination.append(block)

    return free
