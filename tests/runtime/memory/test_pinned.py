"""Pinned memory: used again at once, unless a copy that uses it is pending."""

from __future__ import annotations

from typing import Any, cast

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flambeau.core.errors import OutOfMemoryError
from flambeau.driver.protocol import Driver
from flambeau.runtime.memory.pinned import PinnedAllocator, PinnedBlock


def make(**chosen: Any) -> tuple[PinnedAllocator, FakeDriver, Any]:
    driver = FakeDriver(**chosen)
    return PinnedAllocator(cast(Driver, driver)), driver, stream_of(context_over(driver), 1)


def test_a_block_no_copy_uses_is_reused_at_once() -> None:
    allocator, driver, _ = make()
    block = allocator.allocate(5000)
    allocator.free(block)
    assert allocator.allocate(5000) is block
    assert driver.events == 0


def test_a_block_waits_for_the_copies_queued_before_its_free() -> None:
    allocator, driver, stream = make()
    side = stream_of(stream.context, 2)
    block = allocator.allocate(5000)
    for one in (stream, side, side):
        driver.work(one.handle)
        allocator.record_use(block, one)
    allocator.free(block)
    assert driver.events == 2
    driver.finish(1)
    assert allocator.allocate(5000) is not block
    driver.finish(2)
    driver.work(2)
    assert allocator.allocate(5000) is block
    allocator.free(block)
    assert allocator.allocate(5000) is block  # that use is over


def test_large_sizes_are_not_rounded_to_powers_of_two() -> None:
    allocator, _, _ = make()
    block = allocator.allocate(65 * MIB + 1)
    assert block.size == 65 * MIB + 512
    allocator.free(block)
    assert allocator.allocate(60 * MIB) is block
    allocator.free(block)
    assert allocator.allocate(40 * MIB) is not block  # it would waste too much


def test_a_refusing_host_gets_the_cache_back_first() -> None:
    allocator, driver, stream = make(capacity=10 * MIB)
    block = allocator.allocate(6 * MIB)
    driver.work(1)
    allocator.record_use(block, stream)
    allocator.free(block)
    assert allocator.allocate(9 * MIB).size == 9 * MIB
    assert list(driver.sizes.values()) == [9 * MIB]
    with pytest.raises(OutOfMemoryError, match=r"cannot pin 5\.00 MiB more; 9\.00 MiB of pinned memory"):
        allocator.allocate(5 * MIB)


def test_zero_bytes_and_closing() -> None:
    allocator, driver, stream = make()
    empty = allocator.allocate(0)
    allocator.free(empty)
    assert (empty.ptr, driver.calls) == (0, 0)
    block = allocator.allocate(100)
    allocator.record_use(block, stream)
    allocator.close()
    allocator.free(block)
    allocator.empty_cache()
    assert driver.events == 0


def test_the_stream_of_a_closed_machine_is_not_waited_for() -> None:
    allocator, _, _ = make()
    elsewhere = stream_of(context_over(FakeDriver()), 7)
    elsewhere.context.closed = True
    block = allocator.allocate(100)
    allocator.record_use(block, elsewhere)
    allocator.free(block)
    assert allocator.allocate(100) is block


def test_observers_see_each_life_end_when_the_copies_are_done() -> None:
    allocator, driver, stream = make(observes_blocks=True)
    block = allocator.allocate(100)
    driver.work(1)
    allocator.record_use(block, stream)
    allocator.free(block)
    assert driver.lives == [("alloc", block.ptr, 100, 0), ("wait", block.ptr, 100, 0)]
    driver.finish(1)
    assert allocator.allocate(50) is block
    allocator.free(block)
    assert driver.lives[2:] == [
        ("free", block.ptr, 100, 0), ("alloc", block.ptr, 50, 0), ("free", block.ptr, 50, 0),
    ]  # fmt: skip


class PinnedMachine(RuleBasedStateMachine):
    """Random programs: no block is handed out twice, or before the copies queued before its free are done."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator, self.driver, stream = make(capacity=64 * MIB)
        self.streams = {handle: stream_of(stream.context, handle) for handle in (1, 2)}
        self.live: list[PinnedBlock] = []
        self.waits: dict[int, dict[int, int]] = {}

    @rule(nbytes=st.one_of(st.integers(1, 20_000), st.integers(1, 20 * MIB)))
    def allocate(self, nbytes: int) -> None:
        try:
            block = self.allocator.allocate(nbytes)
        except OutOfMemoryError:
            assert self.driver.used == sum(block.size for block in self.live)
            return
        assert block not in self.live
        assert block.size >= nbytes
        for stream, when in self.waits.pop(block.ptr, {}).items():
            assert self.driver.done.get(stream, 0) >= when
        self.live.append(block)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), handles=st.sets(st.sampled_from([1, 2])))
    def copy_and_free(self, data: st.DataObject, handles: set[int]) -> None:
        block = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.waits[block.ptr] = {handle: self.driver.work(handle) for handle in sorted(handles)}
        for handle in sorted(handles):
            self.allocator.record_use(block, self.streams[handle])
        self.allocator.free(block)

    @rule(handle=st.sampled_from([1, 2]))
    def finish(self, handle: int) -> None:
        self.driver.finish(handle)

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        assert self.driver.used == sum(block.size for block in self.live)

    @invariant()
    def reserved_is_what_the_driver_gave(self) -> None:
        assert self.allocator.reserved_bytes == self.driver.used


TestPinnedMachine = PinnedMachine.TestCase
TestPinnedMachine.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)
