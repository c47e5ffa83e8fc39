"""Segments that grow (`expandable_segments:True`): the allocator's promises hold of them, and fragments are few."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import test_allocator
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver
from hypothesis import settings
from hypothesis.stateful import invariant, rule

import flambeau as torch
from flambeau.core.errors import DriverError, InvalidAddressError, OutOfMemoryError
from flambeau.runtime import system
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import policy_of
from flambeau.runtime.memory_reports.replay import Event, play
from flambeau.runtime.memory_reports.snapshot import snapshot


def growing(**chosen: Any) -> tuple[CachingAllocator, FakeDriver, Any]:
    driver = FakeDriver(**chosen)
    context = context_over(driver)
    return CachingAllocator(context, policy_of("expandable_segments:True")), driver, stream_of(context, 1)


def test_a_segment_grows_by_pages() -> None:
    allocator, driver, stream = growing()
    first = allocator.allocate(8 * MIB, stream)
    assert driver.sizes == {first.ptr: 20 * MIB}
    second = allocator.allocate(30 * MIB, stream)
    assert second.ptr == first.ptr + 8 * MIB, "it begins where the free end began"
    assert list(driver.sizes.values()) == [20 * MIB] * 2
    small = allocator.allocate(1000, stream)
    assert allocator.reserved_bytes() == driver.used == 42 * MIB
    for block in (first, second, small):
        allocator.free(block)
    allocator.empty_cache()
    assert not driver.sizes and allocator.reserved_bytes() == 0


def test_free_pages_in_the_middle_go_back_and_come_again() -> None:
    allocator, driver, stream = growing()
    blocks = [allocator.allocate(20 * MIB, stream) for _ in range(5)]
    for i in (1, 2):
        allocator.free(blocks[i])
    allocator.empty_cache()
    assert sorted(driver.sizes) == [blocks[i].ptr for i in (0, 3, 4)]
    again = allocator.allocate(40 * MIB, stream)
    assert again.ptr == blocks[1].ptr and len(driver.sizes) == 5


def test_edges_of_pages_stay_with_their_neighbours() -> None:
    allocator, driver, stream = growing()
    low, middle, high = (allocator.allocate(n * MIB, stream) for n in (19, 42, 19))
    allocator.free(middle)
    allocator.empty_cache()
    assert sorted(driver.sizes) == [low.ptr, low.ptr + 60 * MIB]
    found = allocator.allocate(2 * MIB, stream)
    assert found.ptr == low.ptr + 19 * MIB, "the rest of a page, and a page behind it"
    assert sorted(driver.sizes) == [low.ptr, low.ptr + 20 * MIB, low.ptr + 60 * MIB]
    for block in (low, found, high):
        allocator.free(block)
    allocator.empty_cache()
    assert not driver.sizes


def test_nothing_is_lost_where_the_device_refuses_amid_pages() -> None:
    allocator, driver, stream = growing(capacity=1000 * MIB)
    held = allocator.allocate(20 * MIB, stream)
    other = driver.mem_alloc(0, 940 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(60 * MIB, stream)
    assert list(driver.sizes) == [held.ptr, other] and allocator.reserved_bytes() == 20 * MIB
    assert allocator.allocate(40 * MIB, stream).ptr == held.ptr + 20 * MIB


def test_a_limit_holds() -> None:
    allocator, driver, stream = growing(capacity=100 * MIB)
    allocator.set_memory_fraction(0.5)
    allocator.allocate(20 * MIB, stream)
    allocator.allocate(20 * MIB, stream)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(20 * MIB, stream)
    assert driver.used == 40 * MIB


def test_a_failure_of_the_driver_changes_nothing() -> None:
    allocator, driver, stream = growing()
    allocator.free(allocator.allocate(20 * MIB, stream))
    driver.fail.add("range_unmap")
    with pytest.raises(DriverError):
        allocator.empty_cache()
    assert allocator.reserved_bytes() == driver.used == 20 * MIB
    allocator.empty_cache()
    assert not driver.used


def test_batches_of_growing_size_leave_no_fragments() -> None:
    """The case that PyTorch's notes give for the setting: sizes that grow a little from step to step."""
    events, key = [], 0
    for step in range(40):
        keys = []
        for size in (12, 13, 14, 15, 16):
            key += 1
            keys.append(key)
            events.append(Event("alloc", key, size * MIB + step * 27 * MIB // 10))
        events += [Event("free", each) for each in keys]
    plain, expandable = (
        play(events, 1 << 40, policy_of(f"expandable_segments:{on}")) for on in (False, True)
    )
    assert expandable.peak_reserved <= 1.05 * expandable.peak_allocated < plain.peak_reserved / 3


@pytest.mark.parametrize("seed", range(3))
def test_a_program_on_virtual_gpus_computes_what_it_did(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> list[float]:
        rng, found, held = random.Random(seed), [], []
        side = torch.cuda.Stream()
        for _ in range(60):
            with torch.cuda.stream(rng.choice([side, torch.cuda.default_stream()])):
                held.append(torch.full((rng.randrange(1, 1 << 18),), float(len(found)), device="cuda"))
                found.append(float(held[-1].double().sum()))
            if rng.random() < 0.6:
                held.pop(rng.randrange(len(held)))
            if rng.random() < 0.1:
                torch.cuda.empty_cache()
        del held
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == torch.cuda.memory_allocated() == 0
        return found

    with torch.virtual(devices=1, races="error"):
        want = program()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with torch.virtual(devices=1, races="error"):
        assert program() == want
        x = torch.ones(1 << 20, device="cuda")
        stats = torch.cuda.memory_stats()
        assert (stats["segment.all.current"], stats["reserved_bytes.all.current"]) == (0, 20 * MIB)
        (segment,) = snapshot([context.allocator for context in system.contexts()])["segments"]
        assert segment["is_expandable"] and segment["total_size"] == 20 * MIB
        assert segment["address"] == x.data_ptr()


def test_what_the_device_has_not_is_refused_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with torch.virtual(devices=1), pytest.raises(OutOfMemoryError):
        torch.empty(1 << 44, device="cuda")


def test_the_warning_that_addresses_are_out_is_about_the_programs_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*sizes: int) -> int:
        raise OutOfMemoryError("no addresses")

    allocator, driver, stream = growing()
    monkeypatch.setattr(driver, "range_reserve", refuse)
    with pytest.warns(UserWarning, match="this segment has a fixed size") as told:
        allocator.allocate(2 * MIB, stream)
    assert told[0].filename == __file__


def test_memory_that_was_taken_away_is_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with torch.virtual(devices=1):
        ptr = torch.ones(1 << 20, device="cuda").data_ptr()
        torch.cuda.empty_cache()
        (context,) = system.contexts()
        with pytest.raises(InvalidAddressError):
            context.driver.fill(ptr, 0, 8, context.default_stream.handle)


class RangeMachine(test_allocator.AllocatorMachine):
    """The same random programs over segments that grow."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator.set_policy(policy_of("expandable_segments:True"))

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        self.forget_done()
        assert not self.pending
        used = [(block.ptr, block.ptr + block.size) for block in self.live]
        for page, nbytes in self.driver.sizes.items():
            assert any(start < page + nbytes and page < end for start, end in used), "a page that nobody uses"

    @invariant()
    def segments_are_what_the_driver_gave(self) -> None:
        covered: set[int] = set()
        for blocks in self.allocator.segments():
            start, end = blocks[0].ptr, blocks[-1].ptr + blocks[-1].size
            assert end - start == sum(block.size for block in blocks)
            covered |= {page for page in self.driver.sizes if start <= page < end}
            assert (
                sum(self.driver.sizes[page] for page in self.driver.sizes if start <= page < end)
                == end - start
            )
            for left, right in pairwise(blocks):
                assert right.previous is left and not (left.is_free and right.is_free)
        assert covered == set(self.driver.sizes)


TestRangeMachine = RangeMachine.TestCase
TestRangeMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
