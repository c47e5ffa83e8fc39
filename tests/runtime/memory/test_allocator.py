"""The caching allocator: PyTorch's policy, exact figures, nothing reused too early, nothing lost."""

from __future__ import annotations

import gc
import random
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.memory.allocator import Block, CachingAllocator
from flambeau.runtime.memory.allocator_statistics import FIGURES, POOLS, Ledger
from flambeau.runtime.memory.log_entries import CODES, Batch, entry


def make(**chosen: Any) -> tuple[CachingAllocator, FakeDriver, Any]:
    driver = FakeDriver(**chosen)
    context = context_over(driver)
    return CachingAllocator(context), driver, stream_of(context, 1)


def current(allocator: CachingAllocator, figure: str, pool: str = "all", kind: str = "current") -> int:
    return allocator.ledger().figures()[figure][pool][kind]


def figures_by_counting(
    allocator: CachingAllocator, live: list[Block], waiting: list[Block]
) -> dict[str, Any]:
    """Current figures from a walk over the blocks."""
    totals = {pool: dict.fromkeys(FIGURES, 0) for pool in POOLS}
    used = {id(block) for block in live}
    active = used | {id(block) for block in waiting}
    for blocks in allocator.segments():
        grows = allocator.is_expandable(blocks[0].ptr)  # then each block has a neighbour, a gap at least
        for pool in (POOLS[blocks[0].pool.kind], "all"):
            total = totals[pool]
            total["segment"] += not grows
            total["reserved_bytes"] += sum(block.size for block in blocks)
            for block in blocks:
                if id(block) in used:
                    total["allocation"] += 1
                    total["allocated_bytes"] += block.size
                    total["requested_bytes"] += block.requested
                if id(block) in active:
                    total["active"] += 1
                    total["active_bytes"] += block.size
                elif grows or len(blocks) > 1:
                    total["inactive_split"] += 1
                    total["inactive_split_bytes"] += block.size
    return totals


# -- policy: the numbers that PyTorch publishes and users know ----------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (4, 512, 2 * MIB),  # torch.ones(1)
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest small request
        (MIB + 1, MIB + 512, 20 * MIB),
        (5 * MIB, 5 * MIB, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),  # the rest of 1 MiB is not split off...
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),  # ... one of more is
    ],
)
def test_sizes_as_pytorch_rounds_them(nbytes: int, allocated: int, reserved: int) -> None:
    allocator, _, stream = make()
    block = allocator.allocate(nbytes, stream)
    expected = 12 * MIB if nbytes == 11 * MIB else allocated
    assert block.ptr % 512 == 0
    assert allocator.allocated_bytes() == block.size == expected
    assert allocator.reserved_bytes() == reserved
    assert current(allocator, "requested_bytes") == nbytes


def test_small_blocks_share_a_segment_and_large_ones_do_not_enter_it() -> None:
    allocator, _, stream = make()
    blocks = [allocator.allocate(MIB // 2, stream) for _ in range(4)]
    assert allocator.reserved_bytes() == 2 * MIB
    assert len({block.ptr for block in blocks}) == 4
    allocator.allocate(2 * MIB, stream)
    assert current(allocator, "reserved_bytes", "large_pool") == 20 * MIB
    assert current(allocator, "segment", "small_pool") == 1


def test_best_fit_takes_the_smallest_hole() -> None:
    allocator, _, stream = make()
    sizes = [300 * 1024, 1024, 200 * 1024, 1024, 100 * 1024, 1024]
    blocks = [allocator.allocate(size, stream) for size in sizes]
    for i in (0, 2, 4):
        allocator.free(blocks[i])
    assert allocator.allocate(150 * 1024, stream).ptr == blocks[2].ptr
    assert allocator.allocate(100 * 1024, stream).ptr == blocks[4].ptr


def test_neighbours_join() -> None:
    allocator, _, stream = make()
    blocks = [allocator.allocate(MIB // 2, stream) for _ in range(4)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(MIB, stream).ptr == blocks[0].ptr
    assert allocator.reserved_bytes() == 2 * MIB


def test_neighbours_in_bins_join_before_the_heap_grows() -> None:
    allocator, driver, stream = make()
    for _ in range(3):  # from the second time on 256 KiB has a bin
        blocks = [allocator.allocate(MIB // 4, stream) for _ in range(8)]
        for block in blocks:
            allocator.free(block)
    calls = driver.calls
    big = [allocator.allocate(MIB, stream) for _ in range(2)]
    assert driver.calls == calls
    assert {block.ptr for block in big} == {min(b.ptr for b in blocks), min(b.ptr for b in blocks) + MIB}


def test_no_more_bins_are_joined_than_a_request_takes() -> None:
    """Small ones first: the large one is whole for who asks for its size next."""
    allocator, driver, stream = make()
    for _ in range(3):
        few = [allocator.allocate(MIB // 4, stream) for _ in range(4)]
        large = allocator.allocate(MIB, stream)
        for block in (*few, large):
            allocator.free(block)
    calls = driver.calls
    assert allocator.allocate(3 * MIB // 4, stream).ptr in {block.ptr for block in few}
    assert allocator.allocate(MIB, stream) is large
    assert driver.calls == calls


def test_memory_returns_to_its_stream_only() -> None:
    allocator, _, stream = make()
    other = stream_of(stream.context, 2)
    block = allocator.allocate(1024, stream)
    allocator.free(block)
    assert allocator.allocate(1024, other).ptr != block.ptr
    assert allocator.reserved_bytes() == 4 * MIB
    assert allocator.allocate(1024, stream).ptr == block.ptr


def test_zero_bytes_are_at_address_zero() -> None:
    allocator, driver, stream = make()
    first, second = allocator.allocate(0, stream), allocator.allocate(0, stream)
    allocator.free(first)
    allocator.free(second)
    assert (first.ptr, first.size, driver.calls, allocator.allocated_bytes()) == (0, 0, 0, 0)
    assert current(allocator, "allocation", kind="allocated") == 0


def test_a_warm_size_asks_the_driver_nothing() -> None:
    allocator, driver, stream = make(observes_blocks=False)
    for _ in range(2):
        allocator.free(allocator.allocate(4096, stream))
    calls = driver.calls
    for _ in range(5000):  # past several settlements of the journal
        allocator.free(allocator.allocate(4096, stream))
    assert driver.calls == calls
    assert current(allocator, "allocation", "small_pool", "allocated") == 5002
    assert current(allocator, "allocation", kind="peak") == 1
    assert not driver.lives


def test_one_bin_serves_every_request_that_rounds_to_it() -> None:
    allocator, _, stream = make()
    for nbytes in 2 * (4, 8, 4, 100, 8, 512):  # the second time by the hot path
        block = allocator.allocate(nbytes, stream)
        assert current(allocator, "requested_bytes") == nbytes
        allocator.free(block)
    assert current(allocator, "requested_bytes", kind="freed") == 2 * (4 + 8 + 4 + 100 + 8 + 512)
    assert current(allocator, "requested_bytes", kind="peak") == 512


# -- release, limits, out of memory -------------------------------------------------------------------------


def test_empty_cache_releases_exactly_the_free_segments() -> None:
    allocator, driver, stream = make()
    kept = allocator.allocate(1024, stream)
    also = allocator.allocate(1024, stream)
    large = allocator.allocate(5 * MIB, stream)
    allocator.free(large)
    allocator.free(also)
    allocator.empty_cache()
    assert list(driver.sizes.values()) == [2 * MIB]
    assert allocator.reserved_bytes() == 2 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert not driver.sizes
    assert allocator.reserved_bytes() == current(allocator, "inactive_split") == 0


def test_out_of_memory_releases_the_cache_before_it_gives_up() -> None:
    allocator, driver, stream = make(capacity=24 * MIB)
    allocator.free(allocator.allocate(5 * MIB, stream))
    block = allocator.allocate(24 * MIB, stream)
    assert list(driver.sizes) == [block.ptr]
    assert allocator.growth.num_retries == 1
    assert allocator.growth.num_ooms == 0


def test_out_of_memory_waits_for_pending_uses_and_reuses_their_memory() -> None:
    allocator, driver, stream = make(capacity=20 * MIB)
    side = stream_of(stream.context, 2)
    block = allocator.allocate(18 * MIB, stream)
    allocator.record_stream(block, side)
    driver.work(2)
    allocator.free(block)
    assert allocator.allocate(18 * MIB, stream).ptr == block.ptr
    assert driver.done[2] == 1


def test_out_of_memory_says_everything_and_changes_nothing() -> None:
    allocator, driver, stream = make(capacity=32 * MIB)
    held = [allocator.allocate(6 * MIB, stream) for _ in range(3)]
    allocator.free(held.pop(1))
    before = (dict(driver.sizes), allocator.allocated_bytes(), allocator.reserved_bytes())
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(19 * MIB, stream)
    text = str(caught.value)
    assert text.startswith(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 32.00 MiB of which "
        "12.00 MiB is free. Of the allocated memory 12.00 MiB is allocated by PyTorch, and 8.00 MiB is "
        "reserved by PyTorch but unallocated."
    )
    assert "the largest free block of any stream is 6.00 MiB" in text
    assert (dict(driver.sizes), allocator.allocated_bytes(), allocator.reserved_bytes()) == before
    assert allocator.growth.num_ooms == 1
    assert allocator.allocate(6 * MIB, stream).ptr


def test_fraction_limits_what_is_reserved() -> None:
    allocator, driver, stream = make(capacity=100 * MIB)
    allocator.set_memory_fraction(0.5)
    assert allocator.memory_fraction == 0.5
    first = allocator.allocate(40 * MIB, stream)
    with pytest.raises(OutOfMemoryError, match=r"(?s)50\.00 MiB allowed; .*raise the fraction"):
        allocator.allocate(12 * MIB, stream)
    allocator.free(first)
    allocator.allocate(48 * MIB, stream)  # the cached 40 MiB make room
    assert driver.used == 48 * MIB


def test_caching_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    allocator, driver, stream = make()
    block = allocator.allocate(1000, stream)
    assert driver.sizes == {block.ptr: 1024}
    assert allocator.reserved_bytes() == allocator.allocated_bytes() == 1024
    allocator.free(block)
    assert not driver.sizes
    assert allocator.reserved_bytes() == allocator.allocated_bytes() == 0


def test_uncached_memory_waits_for_recorded_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    allocator, driver, stream = make()
    block = allocator.allocate(1000, stream)
    allocator.record_stream(block, stream_of(stream.context, 2))
    driver.work(2)
    allocator.free(block)
    assert block.ptr in driver.sizes
    driver.finish(2)
    allocator.allocate(1000, stream)
    assert block.ptr not in driver.sizes


# -- record_stream ------------------------------------------------------------------------------------------


def test_a_recorded_block_waits_for_the_work_queued_before_its_free() -> None:
    allocator, driver, stream = make()
    side = stream_of(stream.context, 2)
    block = allocator.allocate(1024, stream)
    allocator.record_stream(block, side)
    driver.work(2)
    allocator.free(block)
    assert current(allocator, "allocation") == 0
    assert current(allocator, "active") == 1
    assert allocator.allocate(1024, stream).ptr != block.ptr
    driver.finish(2)
    driver.work(2)  # later work does not matter
    assert allocator.allocate(1024, stream) is block
    assert current(allocator, "active") == 2
    assert driver.internal and all(driver.internal)


def test_the_events_of_a_block_are_its_own_until_it_comes_back() -> None:
    """Else an observer that looks them up sees what another block recorded, and thinks that nobody asked for this."""
    allocator, driver, stream = make(observes_blocks=True)
    one, other = stream_of(stream.context, 2), stream_of(stream.context, 3)
    first, second = allocator.allocate(1000, stream), allocator.allocate(1000, stream)
    for user in (one, other):
        allocator.record_stream(first, user)
        driver.work(user.handle)
    allocator.free(first)
    driver.finish(2)
    held = allocator.allocate(2000, stream)  # it asks: stream 2 is done, stream 3 is not
    driver.work(2)
    allocator.record_stream(second, one)
    allocator.free(second)
    driver.finish(3)
    allocator.free(held)
    allocator.allocate(3000, stream)
    assert driver.ends == [[], [(2, 1), (3, 1)]]


def test_the_next_life_of_a_recorded_block_needs_no_event() -> None:
    allocator, driver, stream = make()
    side = stream_of(stream.context, 2)
    block = allocator.allocate(1024, stream)
    allocator.record_stream(block, side)
    allocator.free(block)
    again = allocator.allocate(1024, stream)
    assert again.ptr == block.ptr
    events = driver.events
    driver.work(2)
    allocator.free(again)
    assert allocator.allocate(1024, stream).ptr == block.ptr
    assert driver.events == events == 1


def test_its_own_stream_is_no_use() -> None:
    allocator, driver, stream = make()
    block = allocator.allocate(1024, stream)
    allocator.record_stream(block, stream)
    driver.work(1)
    allocator.free(block)
    assert allocator.allocate(1024, stream).ptr == block.ptr
    assert not driver.events


# -- observers ----------------------------------------------------------------------------------------------


def test_observers_see_each_life_of_a_block() -> None:
    allocator, driver, stream = make(observes_blocks=True)
    side = stream_of(stream.context, 2)
    allocator.free(allocator.allocate(0, stream))
    block = allocator.allocate(1000, stream)
    allocator.free(block)
    again = allocator.allocate(24, stream)
    allocator.record_stream(again, side)
    driver.work(2)
    allocator.free(again)
    ptr = block.ptr
    first = [("alloc", ptr, 1000, 1), ("free", ptr, 1000, 1), ("alloc", again.ptr, 24, 1)]
    assert driver.lives == [*first, ("wait", again.ptr, 24, 1)]
    driver.finish(2)
    allocator.free(allocator.allocate(24, stream))
    third = [("free", again.ptr, 24, 1), ("alloc", again.ptr, 24, 1), ("free", again.ptr, 24, 1)]
    assert driver.lives[4:] == third


def test_free_after_close_is_quiet() -> None:
    for observes in (False, True):
        allocator, driver, stream = make(observes_blocks=observes)
        plain, used = allocator.allocate(1024, stream), allocator.allocate(1024, stream)
        allocator.record_stream(used, stream_of(stream.context, 2))
        lives, calls = list(driver.lives), driver.calls
        stream.context.closed = True
        allocator.free(plain)
        allocator.free(used)
        allocator.empty_cache()
        assert (driver.lives, driver.calls, driver.events) == (lives, calls, 0)


# -- reentrancy and threads ---------------------------------------------------------------------------------


class Owner:
    """Frees its block when it is collected, as a storage does; a cycle, so the collector does it."""

    def __init__(self, allocator: CachingAllocator, block: Block) -> None:
        self.allocator, self.block, self.me = allocator, block, self

    def __del__(self) -> None:
        self.allocator.free(self.block)


def test_the_collector_frees_in_the_middle_of_everything() -> None:
    allocator, driver, stream = make()
    side = stream_of(stream.context, 2)
    rng = random.Random(3)
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(1500):
            block = allocator.allocate(rng.choice([512, 4096, 70_000, 3 * MIB]), stream)
            if rng.random() < 0.3:
                allocator.record_stream(block, side)
            driver.finish(2)
            Owner(allocator, block)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert allocator.allocated_bytes() == 0
    allocator.empty_cache()
    assert not driver.sizes
    assert current(allocator, "active") == allocator.reserved_bytes() == 0


def test_a_finalizer_may_allocate_in_the_middle_of_a_search() -> None:
    allocator, driver, stream = make()
    inside: list[Block] = []
    real = driver.mem_alloc

    def nested(index: int, nbytes: int) -> int:
        driver.mem_alloc = real  # type: ignore[method-assign]
        inside.append(allocator.allocate(1024, stream))
        allocator.free(allocator.allocate(2048, stream))
        allocator.empty_cache()
        return real(index, nbytes)

    driver.mem_alloc = nested  # type: ignore[method-assign]
    outer = allocator.allocate(1024, stream)
    assert outer.ptr != inside[0].ptr
    assert sorted(driver.sizes.values()) == [1024, 2 * MIB]  # the freed one is gone again
    allocator.free(inside[0])
    allocator.free(outer)
    allocator.empty_cache()
    assert not driver.sizes
    assert allocator.reserved_bytes() == 0


def test_a_recorded_block_freed_in_the_middle_of_a_search_waits_from_its_end() -> None:
    allocator, driver, stream = make()
    block = allocator.allocate(1024, stream)
    allocator.record_stream(block, stream_of(stream.context, 2))
    real = driver.mem_alloc
    seen: list[int] = []

    def nested(index: int, nbytes: int) -> int:
        allocator.free(block)
        seen.append(driver.events)
        return real(index, nbytes)

    driver.mem_alloc = nested  # type: ignore[method-assign]
    allocator.allocate(5 * MIB, stream)
    assert (seen, driver.events) == ([0], 1)


def test_sixteen_threads() -> None:
    allocator, driver, stream = make()
    streams = [stream, stream_of(stream.context, 2)]
    failures: list[str] = []
    owners: dict[int, int] = {}
    interval = sys.getswitchinterval()

    def run(seed: int) -> None:
        rng = random.Random(seed)
        mine: list[Block] = []
        for _ in range(400):
            if mine and rng.random() < 0.5:
                block = mine.pop(rng.randrange(len(mine)))
                if owners.pop(block.ptr) != seed:
                    failures.append("somebody else has the block")
                allocator.free(block)
                continue
            block = allocator.allocate(rng.choice([512, 1000, 5000, 2 * MIB]), rng.choice(streams))
            if owners.setdefault(block.ptr, seed) != seed:
                failures.append("handed out twice")
            if rng.random() < 0.1:
                allocator.record_stream(block, streams[1])
            mine.append(block)
        for block in mine:
            owners.pop(block.ptr)
            allocator.free(block)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures and not owners
    assert allocator.allocated_bytes() == 0
    allocator.empty_cache()
    assert not driver.sizes
    assert all(value == 0 for row in allocator.ledger().current for value in row)


# -- cost ---------------------------------------------------------------------------------------------------


def calls_of(action: Any) -> int:
    """How many Python and C calls an action makes: a cost that no clock measures."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_other_sizes_keep_their_short_way_when_a_bin_goes() -> None:
    allocator, _, stream = make()
    for _ in range(3):  # from the second time on both sizes have bins
        few = [allocator.allocate(MIB // 4, stream) for _ in range(4)]
        large = allocator.allocate(MIB, stream)
        for block in (*few, large):
            allocator.free(block)
    short = calls_of(lambda: allocator.free(allocator.allocate(MIB, stream)))
    between = allocator.allocate(MIB - 512, stream)  # takes the small ones, whose bin goes
    assert between.ptr == min(block.ptr for block in few)
    assert calls_of(lambda: allocator.free(allocator.allocate(MIB, stream))) == short
    allocator.free(between)
    for _ in range(3):  # the bin that comes in its place serves as the first did
        again = [allocator.allocate(MIB // 4, stream) for _ in range(4)]
        assert {block.ptr for block in again} == {block.ptr for block in few}
        for block in again:
            allocator.free(block)
    short_again = calls_of(lambda: allocator.free(allocator.allocate(MIB // 4, stream)))
    assert short_again == short


def test_cost_does_not_grow_with_the_number_of_live_blocks() -> None:
    def most_calls(live: int) -> int:
        allocator, _, stream = make()
        rng = random.Random(5)
        held = [allocator.allocate(rng.randrange(1, 60_000), stream) for _ in range(live)]
        for i in range(0, live, 3):
            allocator.free(held[i])
        allocator.free(allocator.allocate(1000, stream))  # what the frees left to join is joined
        allocator.ledger()
        keep = []
        return max(
            calls_of(lambda: keep.append(allocator.allocate(rng.randrange(1, 60_000), stream)))
            for _ in range(100)
        )

    assert most_calls(20_000) <= most_calls(200) + 5


# -- the ledger ---------------------------------------------------------------------------------------------


def test_the_two_ways_of_posting_agree() -> None:
    rng = random.Random(11)
    codes = list(CODES)
    read = [(rng.choice(codes), *[rng.randrange(-5, 6) for _ in range(5)]) for _ in range(500)]
    read = [read[rng.randrange(60)] for _ in range(500)]
    postings = [entry(*numbers) for numbers in read]
    at_once, by_steps = Ledger(), Ledger()
    at_once.post(Batch(postings[:200]))
    at_once.post(Batch(postings[200:]))
    assert Batch(postings).numbers.tolist() == [list(numbers) for numbers in read]
    for posting in postings:
        by_steps.post([posting])
    assert at_once.figures() == by_steps.figures()


def test_a_block_that_is_cut_for_a_request_was_never_two_that_are_free() -> None:
    allocator, _, stream = make()
    allocator.allocate(512, stream)
    assert current(allocator, "inactive_split", kind="peak") == 1
    assert current(allocator, "inactive_split_bytes", kind="peak") == 2 * MIB - 512
    allocator.allocate(700, stream)
    assert current(allocator, "inactive_split", kind="peak") == 1


# -- everything, by random programs -------------------------------------------------------------------------

SIZES = st.one_of(
    st.sampled_from([0, 1, 512, 513, 4096, 100_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 13 * MIB]),
    st.integers(1, 14 * MIB),
)
STREAMS = st.integers(1, 3)


class AllocatorMachine(RuleBasedStateMachine):
    """A program of allocations; a model knows what is live, what waits, and what each must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator, self.driver, stream = make(capacity=96 * MIB)
        self.streams = {handle: stream_of(stream.context, handle) for handle in (1, 2, 3)}
        self.live: list[Block] = []
        self.uses: dict[int, set[int]] = {}  # of live blocks, by address
        self.pending: dict[int, tuple[Block, dict[int, int]]] = {}  # by address: what must be done first
        self.free_destination: dict[int, int] = {}  # the stream of each address seen
        self.peaks: dict[str, int] = {}
        self.limit = self.driver.capacity

    @rule(nbytes=SIZES, handle=STREAMS)
    def allocate(self, nbytes: int, handle: int) -> None:
        before = {block.ptr: block.size for block in self.live}
        try:
            block = self.allocator.allocate(nbytes, self.streams[handle])
        except OutOfMemoryError:
            assert {b.ptr: b.size for b in self.live} == before
            assert self.driver.used <= self.limit
            self.forget_done()
            return
        if not nbytes:
            assert block.ptr == 0
            self.allocator.free(block)
            return
        assert nbytes <= block.size
        assert block.pool.stream == handle
        self.forget_done()
        for other, _ in self.pending.values():
            assert block.ptr + block.size <= other.ptr or other.ptr + other.size <= block.ptr
        self.live.append(block)
        self.uses[block.ptr] = set()

    def forget_done(self) -> None:
        self.pending = {
            ptr: (block, waits)
            for ptr, (block, waits) in self.pending.items()
            if any(self.driver.done.get(stream, 0) < when for stream, when in waits.items())
        }

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        used_by = self.uses.pop(block.ptr)
        if used_by:
            waits = {stream: self.driver.clock.get(stream, 0) for stream in used_by}
            self.pending[block.ptr] = (block, waits)
        self.allocator.free(block)
        self.forget_done()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), handle=STREAMS)
    def record_stream(self, data: st.DataObject, handle: int) -> None:
        block = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        self.allocator.record_stream(block, self.streams[handle])
        if handle != block.pool.stream:
            self.uses[block.ptr].add(handle)

    @rule(handle=STREAMS)
    def work(self, handle: int) -> None:
        self.driver.work(handle)

    @rule(handle=STREAMS)
    def finish(self, handle: int) -> None:
        self.driver.finish(handle)
        self.forget_done()

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        self.forget_done()
        assert not self.pending  # it waited for them
        used = {id(block) for block in self.live}
        for blocks in self.allocator.segments():
            assert any(id(block) in used for block in blocks)

    @rule(count=st.integers(1, 2))
    def refuse(self, count: int) -> None:
        self.driver.refuse = count

    @rule(fraction=st.sampled_from([0.25, 0.5, 1.0]))
    def limit_to(self, fraction: float) -> None:
        self.allocator.set_memory_fraction(fraction)

    @rule()
    def reset_peaks(self) -> None:
        self.allocator.reset_peaks()
        self.peaks = {}

    @invariant()
    def no_two_live_blocks_overlap(self) -> None:
        spans = sorted((block.ptr, block.ptr + block.size) for block in self.live)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(block.ptr % 512 == 0 for block in self.live)

    @invariant()
    def segments_are_what_the_driver_gave(self) -> None:
        sizes = {blocks[0].ptr: sum(b.size for b in blocks) for blocks in self.allocator.segments()}
        assert sizes == self.driver.sizes
        for blocks in self.allocator.segments():
            for left, right in pairwise(blocks):
                assert left.ptr + left.size == right.ptr
                assert right.previous is left
                assert not (left.is_free and right.is_free)

    @invariant()
    def figures_are_sums_over_blocks(self) -> None:
        waiting = list(self.allocator._frees.waiting)
        counted = figures_by_counting(self.allocator, self.live, waiting)
        assert self.allocator.allocated_bytes() == counted["all"]["allocated_bytes"]
        figures = self.allocator.ledger().figures()
        for figure in FIGURES:
            for pool in POOLS:
                found = figures[figure][pool]
                assert found["current"] == counted[pool][figure], (figure, pool)
                assert found["current"] == found["allocated"] - found["freed"]
                key = f"{figure}.{pool}"
                self.peaks[key] = max(self.peaks.get(key, 0), found["current"])
                assert found["peak"] >= self.peaks[key]
        for figure in (
            "allocation",
            "allocated_bytes",
            "requested_bytes",
        ):  # change once a step: peaks are exact
            assert figures[figure]["all"]["peak"] == self.peaks[f"{figure}.all"]

    @invariant()
    def pending_blocks_are_active(self) -> None:
        waiting = {block.ptr for block in self.allocator._frees.waiting}
        assert set(self.pending) <= waiting

    def teardown(self) -> None:
        for block in self.live:
            self.allocator.free(block)
        self.allocator.empty_cache()
        assert not self.driver.sizes
        assert self.allocator.reserved_bytes() == 0
        assert all(value == 0 for row in self.allocator.ledger().current for value in row)


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
