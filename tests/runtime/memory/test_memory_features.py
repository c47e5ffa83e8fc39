"""MemPools, resources, settings, histories, memory by address, pinned figures."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver
from support import torch as oracle

import flambeau as torch
from flambeau.core.errors import NotSupportedError, OutOfMemoryError
from flambeau.runtime.hooks import annotations
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import Policy, from_environment, policy_of
from flambeau.runtime.memory.history import Recording
from flambeau.runtime.memory.resources import Counted, DriverMemory, Failing, LibraryMemory, Limited, Logged
from flambeau.runtime.memory_reports import snapshot
from flambeau.runtime.memory_reports.replay import Event, events_of, play
from flambeau.runtime.memory_reports.traces import ACTIONS


@pytest.fixture
def gpu() -> Iterator[None]:
    with torch.virtual(devices=1, profile="v100-16g"):
        yield


def make(text: str = "", **chosen: Any) -> tuple[CachingAllocator, FakeDriver, Any]:
    driver = FakeDriver(**chosen)
    context = context_over(driver)
    return CachingAllocator(context, policy_of(text)), driver, stream_of(context, 1)


def floats(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes // 4, device="cuda")


# -- settings -----------------------------------------------------------------------------------------------------


def test_settings_are_read_as_pytorch_writes_them() -> None:
    policy = policy_of(" max_split_size_mb: 64 , garbage_collection_threshold:0.8,roundup_power2_divisions:4")
    assert (policy.max_split, policy.collect_above, policy.divisions) == (64 * MIB, 0.8, (4,))
    listed = policy_of("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert listed.divisions == (1,) * 9 + (2, 4) + (8,) * 5
    assert policy_of(listed.text) == listed
    assert policy_of(policy.text) == policy
    assert policy_of("") == Policy() and Policy().text == ""
    assert policy_of("pinned_use_cuda_host_register:True,backend:native") == Policy()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense:1", "Unrecognized CachingAllocator option: nonsense"),
        ("max_split_size_mb:19", "too small, must be >= 20"),
        (f"max_split_size_mb:{10**20}", "must be a whole number"),
        ("large_segment_size_mb:10", "too small, must be > 10"),
        ("garbage_collection_threshold:1", "above 0 and below 1"),
        ("pinned_use_background_threads:maybe", "Expected True/False"),
        ("pinned_reserve_segment_size_mb:True", "must be a whole number"),
        ("max_split_size_mb:-1", "must be a whole number"),
        ("max_split_size_mb", "is not a list of name:value"),
        ("garbage_collection_threshold:2", "above 0 and at most 1"),
        ("roundup_power2_divisions:3", "powers of 2"),
        ("backend:cudaMallocAsync", "the native backend alone"),
        ("expandable_segments:maybe", "Expected True/False"),
    ],
)
def test_wrong_settings_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        policy_of(text)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("max_split_size_mb:20", True), ("max_split_size_mb:19", False), ("max_non_split_rounding_mb:20", True),
        ("max_non_split_rounding_mb:19", False), ("large_segment_size_mb:11", True),
        ("large_segment_size_mb:10", False), ("garbage_collection_threshold:0.99", True),
        ("garbage_collection_threshold:1.0", False), ("pinned_max_round_threshold_mb:10", True),
        ("pinned_use_background_threads:True", True), ("pinned_use_background_threads:1", False),
        ("roundup_power2_divisions:[256:1,>:8]", True), ("roundup_power2_divisions:3", False),
        ("max_split_size_mb", False), (f"max_split_size_mb:{10**20}", False), ("max_split_size_mb:64,", True),
    ],
)  # fmt: skip
def test_settings_are_taken_and_refused_as_pytorch_does(text: str, takes: bool) -> None:
    """Its CPU build has the parser of all devices' settings."""
    try:
        oracle._C._accelerator_setAllocatorSettings(text)
        taken = True
    except (ValueError, IndexError, RuntimeError):
        taken = False
    finally:
        oracle._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")  # others' limits follow it
    try:
        policy_of(text)
        ours = True
    except ValueError:
        ours = False
    assert taken == ours == takes


def test_settings_are_a_text(gpu: None) -> None:
    with pytest.raises(TypeError, match="argument 'env' must be str, not int"):
        torch.cuda.memory._set_allocator_settings(5)


def test_options_of_pytorch_that_change_nothing_here_are_read() -> None:
    for name in (
        "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc", "throw_on_cudamalloc_oom",
    ):  # fmt: skip
        assert policy_of(f"{name}:True") == Policy()
    assert policy_of("pinned_reserve_segment_size_mb:64,pinned_num_register_threads:8") == Policy()


def test_large_segments_may_be_smaller() -> None:
    allocator, driver, stream = make("large_segment_size_mb:11")
    held = [allocator.allocate(n * MIB, stream) for n in (2, 9, 5)]
    assert driver.used == 22 * MIB and len({block.ptr for block in held}) == 3


def test_the_environment_gives_settings() -> None:
    assert from_environment({}) == Policy()
    assert from_environment({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32"}).max_split == 32 * MIB
    both = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32"}
    assert from_environment(both).max_split == 64 * MIB
    assert not from_environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}).caching
    with pytest.raises(ValueError, match="PYTORCH_ALLOC_CONF='x:1': Unrecognized"):
        from_environment({"PYTORCH_ALLOC_CONF": "x:1"})


def test_sizes_round_up_by_steps_of_powers_of_two() -> None:
    policy = policy_of("roundup_power2_divisions:4")
    assert [policy.round_up(n * MIB) for n in (1, 5, 6, 7, 9, 1200)] == [
        n * MIB for n in (1, 5, 6, 7, 10, 1280)
    ]
    assert policy.round_up(1000) == 1024
    allocator, _, stream = make("roundup_power2_divisions:4")
    assert allocator.allocate(9 * MIB, stream).size == 10 * MIB


def test_oversize_blocks_are_kept_whole_and_counted() -> None:
    allocator, driver, stream = make("max_split_size_mb:32")
    big = allocator.allocate(64 * MIB, stream)
    assert (allocator.oversize_allocations.current, allocator.oversize_segments.current) == (1, 1)
    allocator.free(big)
    assert (allocator.oversize_allocations.current, allocator.oversize_segments.current) == (0, 1)
    small = allocator.allocate(16 * MIB, stream)
    assert small.ptr != big.ptr and driver.used == 80 * MIB  # not cut from the big one
    assert allocator.allocate(40 * MIB, stream).ptr != big.ptr  # much smaller
    assert allocator.allocate(50 * MIB, stream).ptr == big.ptr  # about as large
    assert allocator.oversize_allocations.current == 2
    assert allocator.oversize_allocations.allocated == 3


def test_how_much_larger_an_oversize_block_may_be() -> None:
    allocator, _, stream = make("max_split_size_mb:32,max_non_split_rounding_mb:25")
    big = allocator.allocate(64 * MIB, stream)
    allocator.free(big)
    assert allocator.allocate(39 * MIB, stream).ptr != big.ptr
    assert allocator.allocate(40 * MIB, stream).ptr == big.ptr  # by 20 MiB it would not be


def test_idle_segments_go_back_where_too_much_is_reserved() -> None:
    allocator, driver, stream = make("garbage_collection_threshold:0.5", capacity=100 * MIB)
    held = [allocator.allocate(n * MIB, stream) for n in (30, 24)]
    allocator.free(held[0])
    allocator.allocate(35 * MIB, stream)  # 54 MiB are reserved, a free segment of 30 among them
    assert held[0].ptr not in driver.sizes
    assert allocator.growth.num_retries == 0


# -- MemPools -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_a_mempool_keeps_its_memory_apart() -> None:
    pool, outside = torch.cuda.MemPool(), floats(30 * MIB)
    del outside
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = floats(12 * MIB)  # not from what is cached outside
        y = torch.cuda.memory_reserved()
    assert pool.use_count() == 1 and y == 42 * MIB
    z = floats(12 * MIB)
    segments = pool.snapshot()
    assert [(s["total_size"], s["segment_pool_id"]) for s in segments] == [(12 * MIB, pool.id)]
    name = "_".join(map(str, pool.id))
    assert torch.cuda.memory_stats()[f"reserved_bytes_by_private_pools.{name}.all.current"] == 12 * MIB
    del x
    torch.cuda.empty_cache()
    assert len(pool.snapshot()) == 1  # while it lives, it keeps them
    del pool
    gc.collect()
    assert torch.cuda.memory_reserved() == 30 * MIB
    del z


@pytest.mark.usefixtures("gpu")
def test_a_mempool_is_of_one_thread_and_nests() -> None:
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    ids: list[Any] = []

    def note(x: torch.Tensor) -> None:
        ids.append(x.memory.block.pool.private and x.memory.block.pool.private.id)

    with torch.cuda.use_mem_pool(outer):
        with torch.cuda.use_mem_pool(inner):
            note(floats(1024))
        note(floats(1024))
        thread = threading.Thread(target=lambda: note(floats(1024)))
        thread.start()
        thread.join()
    note(floats(1024))
    assert ids == [inner.id, outer.id, None, None]


def test_nothing_is_left_of_pools_that_are_gone(gpu: None) -> None:
    kept = torch.ones(3, device="cuda")
    allocator = torch.cuda.memory._allocator(None)
    before = len(allocator._heap.pools), torch.cuda.memory_stats().keys()
    outlived = []
    for n in range(8):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            outlived.append(torch.ones(1000, device="cuda"))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept + 1
        graph.replay()
        outlived = outlived[n % 2 :]
    del pool, graph
    private = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    assert private and all(found["all"]["current"] > 0 for found in private.values())
    outlived.clear()
    torch.cuda.empty_cache()
    assert (len(allocator._heap.pools), torch.cuda.memory_stats().keys()) == before


def test_the_peaks_of_pools_are_reset_with_the_others(gpu: None) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        floats(30 * MIB)
        torch.cuda.empty_cache()
        floats(MIB)
    stats = torch.cuda.memory_stats_as_nested_dict
    whole = stats()["reserved_bytes_by_private_pools"][pool.id]["all"]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    again = stats()["reserved_bytes_by_private_pools"][pool.id]["all"]
    assert whole["current"] == again["current"] == again["peak"] > 0
    assert whole["allocated"] > again["allocated"] == again["freed"] == 0


@pytest.mark.parametrize("id", [None, (0, 0)])
def test_a_capture_without_a_pool_has_its_own(gpu: None, id: Any) -> None:
    """(0, 0) is the id of no pool, as in PyTorch."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=id):
        kept = torch.ones(4, device="cuda")
    assert graph.pool() != (0, 0)
    assert [s["segment_pool_id"] for s in torch.cuda.memory_snapshot(graph.pool())] == [graph.pool()]
    assert torch.cuda.memory_snapshot((0, 0)) == torch.cuda.memory_snapshot()
    assert len(torch.cuda.memory_snapshot()) == 1 and kept.is_cuda


def test_ids_that_are_none_are_refused_before_anything_begins(gpu: None) -> None:
    with (
        pytest.raises(ValueError, match="no memory pool has the id"),
        torch.cuda.graph(torch.cuda.CUDAGraph(), pool=(1 << 40, 5)),
    ):
        pass
    with pytest.raises(TypeError, match="is a pair of ints"):
        torch.cuda.memory_snapshot(5)
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.ones(3, device="cuda").sum() == 3


def test_a_mempool_may_serve_others_at_last() -> None:
    with torch.virtual(devices=1, profile="v100-16g"):
        free, _ = torch.cuda.mem_get_info()
        half = free // 2 // MIB * MIB
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            floats(half)
        kept = floats(half - 4 * MIB)
        assert floats(half - 6 * MIB).numel() and kept.numel()
        closed = torch.cuda.MemPool()
        del pool
        gc.collect()
        with torch.cuda.use_mem_pool(closed):
            floats(half)
        with pytest.raises(torch.OutOfMemoryError):
            floats(half - 6 * MIB)


def test_a_pool_without_splits_has_a_segment_for_each_block(gpu: None) -> None:
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        kept = [floats(MIB) for _ in range(3)]
    assert [len(s["blocks"]) for s in pool.snapshot()] == [1, 1, 1]
    assert kept


# -- resources ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_resources_wrap_resources_under_a_mempool() -> None:
    lines: list[str] = []
    counted = Counted(Logged(Limited(DriverMemory(), 60 * MIB), lines.append))
    pool = torch.cuda.MemPool(counted)
    with torch.cuda.use_mem_pool(pool):
        x = floats(40 * MIB)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            floats(30 * MIB)
    assert (counted.calls.current, counted.nbytes.peak) == (1, 40 * MIB)
    assert (
        lines[0].startswith(f"allocate {40 * MIB} bytes on device 0") and "would exceed the limit" in lines[1]
    )
    del x, pool
    gc.collect()
    assert counted.nbytes.current == 0 and lines[-1].startswith(f"free {40 * MIB} bytes")


def test_a_failing_resource_is_retried() -> None:
    allocator, driver, stream = make()
    failing = Failing(nth=2)
    allocator._segments.source = failing
    allocator.free(allocator.allocate(30 * MIB, stream))
    block = allocator.allocate(40 * MIB, stream)
    assert (failing.count, allocator.growth.num_retries, list(driver.sizes)) == (3, 1, [block.ptr])
    half = Failing(probability=0.5, seed=1)
    outcomes = []
    for _ in range(20):
        try:
            half.allocate(512, driver, 0, 1)
            outcomes.append(True)
        except OutOfMemoryError:
            outcomes.append(False)
    assert 5 < sum(outcomes) < 15


@pytest.mark.usefixtures("gpu")
def test_the_allocator_may_be_replaced_before_its_first_use() -> None:
    counted = Counted()
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(counted))
    assert torch.cuda.get_allocator_backend() == "pluggable"
    x = torch.ones(1000, device="cuda")
    assert (x.sum().item(), counted.nbytes.current) == (1000, 4096)
    del x
    assert counted.nbytes.current == torch.cuda.memory_reserved() == 0
    with pytest.raises(RuntimeError, match="Can't swap an already initialized allocator"):
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(counted))


class Crooked(DriverMemory):
    """Memory that begins eight bytes late."""

    def allocate(self, nbytes: int, *asked: Any) -> int:
        return super().allocate(nbytes + 512, *asked) + 8

    def free(self, ptr: int, nbytes: int, *asked: Any) -> None:
        super().free(ptr - 8, nbytes + 512, *asked)


def test_memory_that_kernels_cannot_take_goes_back() -> None:
    allocator, driver, stream = make()
    allocator._segments.source = Crooked()
    with pytest.raises(
        RuntimeError, match=r"Crooked\.allocate\(2097152\) gave memory at .* not a multiple of 256"
    ):
        allocator.allocate(100, stream)
    assert not driver.sizes and allocator._segments.reserved == 0
    allocator._segments.source = DriverMemory()
    assert allocator.allocate(100, stream).ptr % 512 == 0


def test_libraries_are_for_real_gpus() -> None:
    library = LibraryMemory("libc.so.6", "malloc", "free")
    with pytest.raises(NotSupportedError, match="real GPUs"):
        library.allocate(512, make()[1], 0, 1)
    with pytest.raises(AttributeError):
        LibraryMemory("libc.so.6", "no_such_function", "free")
    with pytest.raises(OSError, match="no_such_library"):
        torch.cuda.CUDAPluggableAllocator("no_such_library.so", "a", "b")


# -- memory by address, caching off and on ------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_memory_by_address() -> None:
    side = torch.cuda.Stream()
    first = torch.cuda.caching_allocator_alloc(1000)
    second = torch.cuda.caching_allocator_alloc(5000, 0, side)
    third = torch.cuda.caching_allocator_alloc(5000, stream=side.cuda_stream)
    assert torch.cuda.memory_allocated() == 1024 + 2 * 5120 and first % 512 == 0
    for ptr in (first, second, third):
        torch.cuda.caching_allocator_delete(ptr)
    assert torch.cuda.memory_allocated() == 0
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(first)
    with pytest.raises(TypeError, match="Invalid type for stream argument"):
        torch.cuda.caching_allocator_alloc(10, stream="side")
    with pytest.raises(torch.OutOfMemoryError):
        torch.cuda.caching_allocator_alloc(-1)
    for wrong in (
        lambda: torch.cuda.caching_allocator_alloc("10"),
        lambda: torch.cuda.caching_allocator_delete("x"),
    ):
        with pytest.raises(TypeError):
            wrong()
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.usefixtures("gpu")
def test_what_gives_no_memory_is_no_resource() -> None:
    for make_it in (torch.cuda.MemPool, torch.cuda.memory.CUDAPluggableAllocator):
        with pytest.raises(TypeError, match="allocate and free"):
            make_it(5)
    with pytest.raises(TypeError, match="CUDAPluggableAllocator lacks them"):  # its `.allocator()` is one
        torch.cuda.MemPool(torch.cuda.memory.CUDAPluggableAllocator(DriverMemory()))
    assert torch.ones(3, device="cuda").sum().item() == 3  # nothing changed


@pytest.mark.usefixtures("gpu")
def test_caching_may_be_off_for_a_while() -> None:
    cached = torch.ones(1000, device="cuda")
    with torch.cuda.memory.caching_allocator_disabled():
        x = torch.ones(1000, device="cuda")
        assert torch.cuda.memory_reserved() == 2 * MIB + 4096
        del x
        assert torch.cuda.memory_reserved() == 2 * MIB
    x = torch.ones(1000, device="cuda")
    assert torch.cuda.memory_reserved() == 2 * MIB
    del cached, x


# -- history ------------------------------------------------------------------------------------------------------


def actions(allocator: CachingAllocator) -> list[tuple[str, int]]:
    return [(event["action"], event["size"]) for event in snapshot.trace(allocator)]


def test_without_caching_what_was_cached_goes_back_first() -> None:
    allocator, driver, stream = make(capacity=64 * MIB)
    allocator.free(allocator.allocate(40 * MIB, stream))
    allocator.set_caching(False)
    block = allocator.allocate(50 * MIB, stream)
    allocator.record_stream(block, stream_of(stream.context, 2))
    driver.work(2)
    allocator.free(block)
    allocator.allocate(40 * MIB, stream)  # waits for the other stream
    assert (allocator.growth.num_ooms, allocator.growth.num_retries) == (0, 2)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(40 * MIB, stream)
    assert (allocator.growth.num_ooms, allocator.growth.num_retries) == (1, 3)


def test_a_short_history_is_always_kept() -> None:
    allocator, _, stream = make()
    block = allocator.allocate(1000, stream)
    allocator.free(block)
    allocator.empty_cache()
    assert actions(allocator) == [
        ("segment_alloc", 2 * MIB), ("alloc", 1000), ("free_requested", 1000), ("free_completed", 1000),
        ("segment_free", 2 * MIB),
    ]  # fmt: skip


def test_a_recorded_use_completes_later_and_errors_are_noted() -> None:
    allocator, driver, stream = make(capacity=4 * MIB)
    block = allocator.allocate(1000, stream)
    allocator.record_stream(block, stream_of(stream.context, 2))
    driver.work(2)
    allocator.free(block)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(30 * MIB, stream)
    assert snapshot.trace(allocator)[-1]["device_free"] == 4 * MIB
    assert [action for action, _ in actions(allocator)] == [
        "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free", "oom",
    ]  # fmt: skip


def test_stacks_of_who_asked_and_who_freed() -> None:
    allocator, _, stream = make()
    allocator.record(Recording(clock=lambda: 5000))

    def asks() -> Any:
        return allocator.allocate(1000, stream)

    def frees(block: Any) -> None:
        allocator.free(block)

    block = asks()
    assert allocator.frames_at(block.ptr)[0]["name"] == "asks"
    frees(block)
    trace = snapshot.trace(allocator)
    names = [(event["action"], event["frames"][0]["name"]) for event in trace]
    assert names == [
        ("segment_alloc", "asks"), ("alloc", "asks"), ("free_requested", "frees"), ("free_completed", "frees"),
    ]  # fmt: skip
    assert all(event["time_us"] == 5 for event in trace)
    assert trace[1]["frames"][0]["filename"] == __file__
    assert allocator.frames_at(block.ptr) is None


@pytest.mark.parametrize(
    ("chosen", "allocs", "frees", "kept"),
    [
        ({"context": None}, False, False, 3), ({"context": "state"}, True, False, 3), ({"context": "alloc"}, True, False, 3),
        ({"context": "all"}, True, True, 3), ({"max_entries": 1}, None, True, 1), ({"enabled": "state"}, None, None, 0),
    ],
)  # fmt: skip
def test_what_a_recording_keeps(chosen: dict[str, Any], allocs: Any, frees: Any, kept: int) -> None:
    allocator, _, stream = make()
    allocator.record(Recording(clear=True, **chosen))
    block = allocator.allocate(1000, stream)
    assert bool(block.frames) == (chosen.get("context", "all") is not None)
    allocator.free(block)
    trace = {event["action"]: bool(event["frames"]) for event in snapshot.trace(allocator)}
    assert (trace.get("alloc"), trace.get("free_completed")) == (allocs, frees)
    assert len([code for code in allocator.history().numbers[:, 0] if ACTIONS[code & -2]]) == kept


@pytest.mark.parametrize("most", [0, 1, 2, 5, 6, 300, 1000])
def test_a_recording_keeps_as_many_events_as_were_asked_for(most: int) -> None:
    """Of what a snapshot shows: a block cut off counts for nothing, a free for two."""
    allocator, _, stream = make()
    allocator.record(Recording(max_entries=most))
    blocks = [allocator.allocate(512 * n, stream) for n in range(1, 301)]
    for block in blocks[:100]:
        allocator.free(block)
    segments = len(list(allocator.segments()))
    trace = snapshot.trace(allocator)
    assert len(trace) == min(most, 300 + 2 * 100 + segments)
    if most:
        assert [e["action"] for e in trace[-2:]] == ["free_requested", "free_completed"][-most:]
        assert trace[-1]["addr"] == blocks[99].ptr


def test_a_recording_ends() -> None:
    allocator, _, stream = make()
    allocator.record(Recording())
    block = allocator.allocate(1000, stream)
    allocator.record(None)
    assert block.frames is None
    allocator.free(block)
    for _ in range(3):
        allocator.free(allocator.allocate(1000, stream))
    assert allocator._fast_lists  # the short way is open again
    assert not snapshot.trace(allocator)[-1]["frames"]


@pytest.mark.usefixtures("gpu")
def test_wrong_recordings_are_refused() -> None:
    record = torch.cuda.memory._record_memory_history
    with pytest.raises(RuntimeError, match="expected enabled to be"):
        record("everything")
    with pytest.raises(RuntimeError, match="expected context to be"):
        record("all", "some")
    with pytest.raises(RuntimeError, match="expected stacks to be"):
        record("all", stacks="C++")
    with pytest.raises(TypeError, match="max_entries"):
        record("all", max_entries=-1)
    with pytest.raises(NotSupportedError, match=r"torch\.fx"):
        torch.cuda.memory._snapshot(augment_with_fx_traces=True)
    record(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)  # as PyTorch 2.0 had it
    x = torch.ones(3, device="cuda")
    assert torch.cuda.memory._allocation_traceback(x.data_ptr())[0]["filename"] == __file__
    later = inspect.signature(oracle.cuda.memory._record_memory_history_legacy).parameters
    assert inspect.signature(torch.cuda.memory._record_as_before).parameters.keys() == later.keys()
    record(True, True, 100, skip_actions=["free_requested"])
    del x
    assert {e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]} >= {"free_completed"}
    assert "free_requested" not in {e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]}
    record(None)


def test_a_recording_keeps_the_ranges_that_the_program_names() -> None:
    memory, record_function = torch.cuda.memory, torch.profiler.record_function

    def named() -> None:
        with record_function("other"):
            torch.ones(3, device="cuda")

    def ranges() -> list[Any]:
        found = memory._snapshot()["external_annotations"]
        assert all(entry["time_us"] >= 0 for entry in found)
        return [(entry["name"], entry["stage"], entry["device"]) for entry in found]

    with torch.virtual(devices=2):
        for all_threads in (False, True):
            memory._record_memory_history(clear_history=True, global_record_annotations=all_threads)
            with record_function("outer"), torch.cuda.device(1), record_function("inner"):
                thread = threading.Thread(target=named)
                thread.start()
                thread.join()
            other = [("other", "START", 0), ("other", "END", 0)] * all_threads
            ours = [("outer", "START", 0), ("inner", "START", 1), ("inner", "END", 1), ("outer", "END", 0)]
            assert ranges() == [*ours[:2], *other, *ours[2:]]
        memory._record_memory_history(max_entries=2)
        assert ranges() == ours[2:]
        memory._record_memory_history(None)
        named()
        assert ranges() == [] and not annotations.has_subscribers()
        memory._record_memory_history()
    assert not annotations.has_subscribers()  # the machine that was recorded is closed


def test_recording_changes_no_figure_and_no_address() -> None:
    outcomes = []
    for recorded in (False, True):
        allocator, driver, stream = make()
        if recorded:
            allocator.record(Recording())
        held = []
        for i in range(60):
            held.append(allocator.allocate(1000 + 37_000 * (i % 7), stream))
            if i % 3:
                allocator.free(held.pop(0))
        outcomes.append(([b.ptr for b in held], allocator.ledger().figures(), driver.calls))
    assert outcomes[0] == outcomes[1]


# -- replays ------------------------------------------------------------------------------------------------------


def test_a_replay_does_what_the_program_did() -> None:
    allocator, _, stream = make()
    side = stream_of(stream.context, 2)
    held = []
    for i in range(300):
        held.append(allocator.allocate(1 + (i * 7919 % 23) * 300_000, (stream, side)[i % 2]))
        if i % 3:
            allocator.free(held.pop(i % len(held)))
    outcome = play(events_of(snapshot.trace(allocator)), 1 << 40)
    peak = allocator.ledger().figures()
    assert outcome.fits
    assert outcome.peak_allocated == peak["allocated_bytes"]["all"]["peak"]
    assert outcome.peak_reserved == peak["reserved_bytes"]["all"]["peak"]


def test_a_replay_follows_the_order_of_streams() -> None:
    allocator, _, stream = make()
    allocator.stream_created()
    orders, side = stream.context.orders, stream_of(stream.context, 2)
    allocator.free(allocator.allocate(30 * MIB, stream))
    orders.wait(side.queue, orders.mark(stream.queue))
    allocator.allocate(30 * MIB, side)
    assert allocator.reserved_bytes() == 30 * MIB
    events = events_of(snapshot.trace(allocator, orders=True))
    assert [event.action for event in events] == ["alloc", "free", "order", "alloc"]
    assert play(events, 1 << 40).peak_reserved == 30 * MIB
    assert play(events_of(snapshot.trace(allocator)), 1 << 40).peak_reserved == 60 * MIB


def test_a_replay_begins_with_what_lived_before_the_trace() -> None:
    trace = [
        {"action": "free_completed", "addr": 1, "size": 3 * MIB, "stream": 0},
        {
            "action": "alloc",
            "addr": 9,
            "size": MIB,
            "stream": 0,
            "frames": [{"filename": "a.py", "line": 3, "name": "f"}],
        },
    ]
    live = [
        {"stream": 0, "blocks": [
            {"address": 5, "state": "active_allocated", "requested_size": 2 * MIB, "size": 2 * MIB},
            {"address": 9, "state": "active_allocated", "requested_size": MIB, "size": MIB},
            {"address": 11, "state": "inactive", "requested_size": 0, "size": MIB},
        ]}
    ]  # fmt: skip
    events = events_of(trace, live)
    assert [(e.action, e.nbytes) for e in events] == [
        ("alloc", 3 * MIB), ("alloc", 2 * MIB), ("free", 0), ("alloc", MIB),
    ]  # fmt: skip
    assert events[-1].where == "a.py:3"


def test_a_replay_says_where_it_ended() -> None:
    events = [
        Event("alloc", 1, 30 * MIB, where="a.py:1"),
        Event("free", 1),
        Event("alloc", 2, 50 * MIB, where="a.py:2"),
    ]
    outcome = play(events, 40 * MIB)
    assert (outcome.fits, outcome.failed_at, outcome.failed) == (False, 2, events[2])
    assert play(events, 50 * MIB).fits


def test_an_error_names_the_setting_that_would_have_helped() -> None:
    from flambeau.runtime.memory_reports.oom_advice import suggest_settings

    allocator, _, stream = make(capacity=100 * MIB)
    allocator.oom_advice = suggest_settings
    allocator.free(allocator.allocate(64 * MIB, stream))
    allocator.allocate(20 * MIB, stream)  # cut from the 64: with max_split_size_mb it would not be
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(64 * MIB, stream)
    text = "With PYTORCH_ALLOC_CONF=expandable_segments:True this very trace would have fitted (replayed just now)."
    assert text in str(caught.value)


def test_an_error_names_the_largest_tensors_and_their_lines() -> None:
    with torch.virtual(devices=1, profile="v100-16g"):
        torch.cuda.memory._record_memory_history()
        kept = [floats(n * 100 * MIB) for n in range(1, 8)]
        side = torch.cuda.Stream()
        native = side.cuda_stream
        with torch.cuda.stream(side):
            kept.append(floats(64 * MIB))
        with pytest.raises(torch.OutOfMemoryError) as caught:
            floats(14 << 30)
    text = str(caught.value)
    lines = [line for line in text.splitlines() if "created at" in line]
    assert len(lines) == 5 and "700.00 MiB" in lines[0] and "test_memory_features.py" in lines[0]
    assert "Held by stream: the default stream" in text and f"stream {native:#x} 64.00 MiB" in text
    assert "the largest free block" in text
    assert "No setting would have made it fit" in text


# -- pinned memory ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_figures_of_pinned_memory() -> None:
    assert torch.cuda.host_memory_stats() == {}  # before first use
    x, y = torch.empty(1000, pin_memory=True), torch.empty(3 * MIB, pin_memory=True)
    stats = torch.cuda.host_memory_stats()
    assert stats["active_requests.current"] == stats["allocations.current"] == stats["num_host_alloc"] == 2
    assert stats["active_bytes.current"] == stats["allocated_bytes.current"] == 12 * MIB + 4096
    del y
    stats = torch.cuda.host_memory_stats()
    assert (stats["active_bytes.current"], stats["active_bytes.peak"]) == (4096, 12 * MIB + 4096)
    assert (stats["allocated_bytes.current"], stats["active_bytes.freed"]) == (12 * MIB + 4096, 12 * MIB)
    assert stats["host_alloc_time.count"] == 2
    assert stats["host_alloc_time.min"] <= stats["host_alloc_time.avg"] <= stats["host_alloc_time.max"]
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    stats = torch.cuda.host_memory_stats()
    assert (stats["active_bytes.peak"], stats["active_bytes.allocated"]) == (4096, 0)
    del x


def test_pinned_memory_that_is_kept_has_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "pinned_max_cached_size_mb:10")
    with torch.virtual(devices=1):
        for n in (4, 5, 6):
            held = [torch.empty(n * MIB // 4, pin_memory=True) for _ in range(2)]
            del held
        torch.empty(7 * MIB // 4, pin_memory=True)
        stats = torch.cuda.host_memory_stats()
        assert stats["num_host_free"] > 0
        assert stats["allocated_bytes.current"] - stats["active_bytes.current"] <= 17 * MIB
        assert sys.getsizeof(stats)
