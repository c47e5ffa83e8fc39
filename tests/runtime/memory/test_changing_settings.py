"""Settings of the caching allocator, and what holds while a program changes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import test_expandable_segments
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

import flambeau as torch
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import policy_of
from flambeau.runtime.memory.allocator_statistics import FIGURES, POOLS
from flambeau.runtime.memory.blocks import Block

TEXTS = (
    "", "max_split_size_mb:20", "expandable_segments:True", "max_split_size_mb:21,expandable_segments:True",
    "max_split_size_mb:24,large_segment_size_mb:40", "roundup_power2_divisions:4",
    "max_split_size_mb:32,max_non_split_rounding_mb:25,roundup_power2_divisions:[1:2,>:8]",
)  # fmt: skip
SIZES = (1, 700, 4096, 300_000, MIB, MIB + 1, *[n * MIB for n in (3, 5, 9, 12, 20, 23, 34)])


def make(text: str = "", **chosen: Any) -> tuple[CachingAllocator, FakeDriver, Any]:
    driver = FakeDriver(**chosen)
    context = context_over(driver)
    return CachingAllocator(context, policy_of(text)), driver, stream_of(context, 1)


# -- blocks that are kept whole -----------------------------------------------------------------------------------


def test_oversize_blocks_are_counted_each_time_they_are_handed_out() -> None:
    allocator, driver, stream = make("max_split_size_mb:20")
    for life in range(1, 6):
        block = allocator.allocate(30 * MIB, stream)
        assert allocator.oversize_allocations.current == 1
        allocator.free(block)
        assert allocator.oversize_allocations.figures() == {
            "current": 0, "peak": 1, "allocated": life, "freed": life,
        }  # fmt: skip
    assert driver.used == 30 * MIB


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:20",  # which a segment of 20 MiB is no smaller than
        "max_split_size_mb:32,large_segment_size_mb:64",
        "max_split_size_mb:20,expandable_segments:True",
    ],
)
def test_a_request_below_the_limit_is_cut_from_its_segment(text: str) -> None:
    allocator, _, stream = make(text)
    for size in (3 * MIB, 4 * MIB, 6 * MIB):  # and again once it is free
        blocks = [allocator.allocate(size, stream) for _ in range(2)]
        assert [block.size for block in blocks] == [size] * 2
        assert allocator.reserved_bytes() == allocator.policy.large_segment
        for block in blocks:
            allocator.free(block)


def test_segments_that_grow_are_cut_whatever_their_size() -> None:
    allocator, driver, stream = make("max_split_size_mb:20,expandable_segments:True")
    allocator.free(allocator.allocate(30 * MIB, stream))
    assert allocator.allocate(3 * MIB, stream).size == 3 * MIB
    assert allocator.reserved_bytes() == driver.used == 40 * MIB


def test_what_was_counted_as_oversize_is_while_the_limit_changes() -> None:
    allocator, _, stream = make()
    before = allocator.allocate(30 * MIB, stream)
    allocator.share(before)
    allocator.set_policy(policy_of("max_split_size_mb:20"))
    allocator.free(before)
    assert (allocator.oversize_allocations.current, allocator.oversize_segments.current) == (0, 0)
    within = allocator.allocate(40 * MIB, stream)
    assert (allocator.oversize_allocations.current, allocator.oversize_segments.current) == (1, 1)
    allocator.set_policy(policy_of(""))
    allocator.free(within)
    allocator.empty_cache()
    assert (allocator.oversize_allocations.current, allocator.oversize_segments.current) == (0, 0)


# -- everything, by random programs -------------------------------------------------------------------------------


class SettingsMachine(test_expandable_segments.RangeMachine):
    """Random programs that change the settings as they go."""

    def __init__(self) -> None:
        super().__init__()
        self.driver.capacity = self.limit = 256 * MIB
        self.large: set[Block] = set()  # those that were oversize when they were handed out
        self.segments: set[int] = set()  # those that were when they came

    @rule(text=st.sampled_from(TEXTS))
    def change(self, text: str) -> None:
        self.allocator.set_policy(policy_of(text))

    @rule(nbytes=st.sampled_from(SIZES), handle=st.integers(1, 2))
    def allocate(self, nbytes: int, handle: int) -> None:
        policy, held, count = self.allocator.policy, set(self.driver.sizes), len(self.live)
        super().allocate(nbytes, handle)
        self.segments |= {
            ptr
            for ptr, size in self.driver.sizes.items()
            if ptr not in held and policy.is_oversize(size) and not self.allocator.is_expandable(ptr)
        }
        if len(self.live) == count:  # there was none
            return
        block, size = self.live[-1], policy.round_up(nbytes)
        (self.large.add if policy.is_oversize(block.size) else self.large.discard)(block)
        if policy.expandable or not policy.is_oversize(size):
            assert block.size - size <= MIB

    @invariant()
    def oversize_figures_are_what_was_counted(self) -> None:
        held = {*self.live, *self.allocator.waiting()}
        assert self.allocator.oversize_allocations.current == len(self.large & held)
        assert self.allocator.oversize_segments.current == len(self.segments & self.driver.sizes.keys())


TestSettingsMachine = SettingsMachine.TestCase
TestSettingsMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)


# -- on virtual GPUs ----------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[None]:
    with torch.virtual(devices=1, profile="v100-16g"):
        yield


def figures_of_the_snapshot() -> dict[str, int]:
    """What `memory_stats` has to say, added up over the blocks of a snapshot."""
    sums = {f"{figure}.{pool}.current": 0 for figure in FIGURES for pool in POOLS}
    for segment in torch.cuda.memory_snapshot():
        blocks = segment["blocks"]
        parts = [
            b for b in blocks if b["state"] == "inactive" and (len(blocks) > 1 or segment["is_expandable"])
        ]
        live = [b for b in blocks if b["state"] == "active_allocated"]
        active = [b for b in blocks if b["state"] != "inactive"]
        counted = (
            len(live), segment["allocated_size"], segment["requested_size"], len(active), segment["active_size"],
            len(parts), sum(b["size"] for b in parts), not segment["is_expandable"], segment["total_size"],
        )  # fmt: skip
        assert segment["active_size"] == sum(b["size"] for b in active)
        for figure, value in zip(FIGURES, counted, strict=True):
            for pool in (f"{segment['segment_type']}_pool", "all"):
                sums[f"{figure}.{pool}.current"] += value
    return sums


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_sums_over_the_blocks_while_settings_change(gpu: None, seed: int) -> None:
    rng = random.Random(seed)
    side = torch.cuda.Stream()
    held: list[torch.Tensor] = []
    for _ in range(60):
        choice = rng.random()
        if choice < 0.15:
            torch.cuda.memory._set_allocator_settings(rng.choice(TEXTS))
        elif choice < 0.2:
            torch.cuda.empty_cache()
        elif choice < 0.55 or not held:
            held.append(torch.empty(rng.choice(SIZES), dtype=torch.uint8, device="cuda"))
        else:
            tensor = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.3:
                tensor.record_stream(side)
            del tensor
        found = torch.cuda.memory_stats()
        counted = figures_of_the_snapshot()
        assert {key: found[key] for key in counted} == counted
    held.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert not torch.cuda.memory_snapshot()
    assert torch.cuda.memory_stats()["oversize_allocations.current"] == 0
