"""The parts of the caching allocator, each alone over a fake driver: fast path, deferred frees, growth."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.memory.allocator_config import Policy
from flambeau.runtime.memory.blocks import Block, prepare_entries
from flambeau.runtime.memory.deferred_frees import DeferredFrees
from flambeau.runtime.memory.event_log import EventLog
from flambeau.runtime.memory.fast_path import allocate_function, free_function, observed_allocate_function
from flambeau.runtime.memory.growth import Growth
from flambeau.runtime.memory.heap import Heap
from flambeau.runtime.memory.reentrant_lock import AllocatorLock
from flambeau.runtime.memory.segments import Segments


class Parts:
    """The parts of an allocator of stream 1, without the allocator."""

    def __init__(self, **chosen: Any) -> None:
        self.driver = FakeDriver(**chosen)
        self.context = context_over(self.driver)
        inbox: deque[Block] = deque()
        self.lock = AllocatorLock(inbox, lambda: self.frees.try_process())
        self.log = EventLog(self.lock)
        self.heap = Heap(self.log.entries, self.context.orders, 0)
        self.segments = Segments(self.context.driver, 0, self.log, self.heap.is_ordered_after)
        self.frees = DeferredFrees(self.context, inbox, self.lock, self.log.entries, self.segments)
        self.growth = Growth(
            self.context,
            self.log,
            self.heap,
            self.segments,
            self.frees,
            lambda pool, size: f"no {size} bytes",
        )
        self.pool = self.heap.new_pool(1, 1, None, Policy())

    def block(self, nbytes: int = 2 * MIB) -> Block:
        """Return an allocated block that is a whole segment."""
        block = self.growth.segment_block(self.pool, nbytes, nbytes, Policy())
        block.free_destination = block.default_list = self.pool.unmerged
        prepare_entries(block, nbytes)
        return block

    def stream(self, handle: int) -> Any:
        return stream_of(self.context, handle)


def test_allocation_pops_from_the_list_of_its_stream_and_size() -> None:
    parts, slow = Parts(), []
    block = parts.block()
    lists = {(1, 100): [block]}

    def allocate_slow(nbytes: int, handle: int) -> Block:
        slow.append((nbytes, handle))
        return block

    allocate = allocate_function(lists, parts.log, allocate_slow)
    assert allocate(100, parts.stream(1)) is block and block.requested == 100 and not slow
    allocate(100, parts.stream(1)), allocate(100, parts.stream(2)), allocate(0, parts.stream(1))
    assert slow == [(100, 1), (100, 2), (0, 1)]


def test_observed_allocation_notifies_the_driver_of_blocks_with_memory() -> None:
    parts = Parts(observes_blocks=True)
    block = parts.block()
    lists = {(1, 7): [block]}
    allocate = observed_allocate_function(
        lists, parts.log, lambda *_: block, parts.context.driver, written=True
    )
    assert allocate(7, parts.stream(1)) is allocate(0, parts.stream(1)) is block
    assert parts.driver.lives == [("alloc", block.ptr, 7, 1)]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("observes", [False, True])
@pytest.mark.parametrize("many_streams", [False, True])
def test_each_free_function_logs_then_returns_the_block(
    recorded: bool, observes: bool, many_streams: bool
) -> None:
    parts = Parts(observes_blocks=observes)
    block, recording = parts.block(), SimpleNamespace(notes=lambda free: ("frames", 5))
    entries = parts.log.entries
    entries.clear()
    parts.log.recording = recording if recorded else None  # type: ignore[assignment]
    free_function(parts.context.driver, parts.context, parts.log, many_streams)(block)
    assert entries == [(block.free_entry, "frames", 5) if recorded else block.free_entry]
    assert parts.pool.unmerged == [block]
    assert parts.driver.lives == ([("free", block.ptr, 2 * MIB, 1)] if observes else [])


def test_a_block_used_by_another_stream_waits_for_its_work() -> None:
    parts = Parts()
    block, other = parts.block(), parts.stream(2)
    parts.driver.work(2)
    parts.frees.record_stream(block, other)
    block.free_destination.append(block)
    parts.frees.poll()
    assert parts.frees.waiting_blocks() == {block} and not parts.pool.unmerged
    parts.driver.finish(2)
    parts.frees.poll()
    assert parts.frees.waiting_blocks() == set() and parts.pool.unmerged == [block] and block.uses is None


def test_a_free_while_the_lock_is_held_is_processed_on_its_release() -> None:
    parts = Parts()
    block = parts.block()
    parts.frees.share(block)
    with parts.lock:
        block.free_destination.append(block)
        assert list(parts.frees.inbox) == [block] and not parts.pool.unmerged
    assert not parts.frees.inbox and parts.pool.unmerged == [block]


def test_oversize_blocks_count_until_they_are_freed() -> None:
    parts = Parts()
    block = parts.block()
    parts.frees.add_oversize(block)
    assert parts.frees.oversize.current == 1
    block.free_destination.append(block)
    assert parts.frees.oversize.current == 0 and parts.pool.unmerged == [block]


def test_growth_releases_cached_memory_before_it_refuses() -> None:
    parts, retries = Parts(capacity=16 * MIB), []
    parts.growth.before_retry = lambda: retries.append(1)
    first = parts.block(12 * MIB)
    parts.pool.unmerged.append(first)
    second = parts.block(16 * MIB)
    assert retries == [1] and parts.growth.num_retries == 1 and list(parts.driver.sizes) == [second.ptr]
    with pytest.raises(OutOfMemoryError, match=f"no {16 * MIB} bytes"):
        parts.block(16 * MIB)
    assert (parts.growth.num_retries, parts.growth.num_ooms) == (2, 1)


def test_an_uncached_block_is_released_by_its_free() -> None:
    parts = Parts()
    block = parts.growth.uncached_block(1000, 1, Policy())
    assert parts.driver.sizes == {block.ptr: 1024}
    block.free_destination.append(block)
    assert not parts.driver.sizes and not parts.frees.to_release
