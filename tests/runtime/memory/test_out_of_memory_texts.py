"""What out-of-memory errors tell: who holds the memory, what would have helped, and whether it does."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver

import flambeau as torch
from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.history import Recording
from flambeau.runtime.memory.resources import Limited
from flambeau.runtime.memory_reports.oom_advice import suggest_settings
from flambeau.runtime.memory_reports.replay import events_of, play
from flambeau.runtime.memory_reports.snapshot import trace

GIB = 1 << 30


@pytest.fixture
def gpu() -> Iterator[None]:
    """One of 16 GiB, of which a little is the context's."""
    with torch.virtual(devices=1, profile="v100-16g", data=False):
        yield


def memory(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def refusal(nbytes: int) -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        memory(nbytes)
    assert "\n\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("gpu")
def test_tensors_alike_are_told_together_and_lines_by_what_they_hold() -> None:
    torch.cuda.memory._record_memory_history()
    small = [memory(8 * MIB) for _ in range(500)]
    large = [memory((100 + n) * MIB) for n in (1, 2, 3, 4, 5)]
    text = refusal(13 * GIB)
    assert re.search(r"^ +105.00 MiB  created at \S+test_out_of_memory_texts.py:\d+ in memory: ", text, re.M)
    assert re.search(
        r"The lines whose tensors hold the most:\n +4.41 GiB  in 505 tensors of \S+:\d+ in memory:", text
    )
    del large
    assert re.search(
        r"The largest live tensors:\n +500 x 8.00 MiB  created at \S+:\d+ in memory: ", refusal(13 * GIB)
    )
    assert "hold the most" not in refusal(13 * GIB)
    assert small


@pytest.mark.usefixtures("gpu")
def test_a_request_beyond_the_gpu_is_called_that() -> None:
    text = refusal(60 * GIB)
    assert text.endswith(
        "That is more than the GPU has: make this tensor smaller, or divide it among several GPUs."
    )


@pytest.mark.usefixtures("gpu")
def test_the_fraction_that_is_told_is_enough() -> None:
    torch.cuda.set_per_process_memory_fraction(0.1)
    kept = memory(GIB)
    found = re.search(r"raise the fraction to ([\d.]+) or more", refusal(5 * GIB))
    assert found is not None
    torch.cuda.set_per_process_memory_fraction(float(found[1]))
    assert memory(5 * GIB) is not None and kept is not None


@pytest.mark.usefixtures("gpu")
def test_the_source_of_a_pool_is_heard() -> None:
    pool = torch.cuda.MemPool(Limited(limit=64 * MIB))
    outside = [memory(6 * MIB) for _ in range(3)]
    del outside[1]
    with torch.cuda.use_mem_pool(pool):
        inside = memory(60 * MIB)
        text = refusal(6 * MIB)
    assert f"in the memory pool {pool.id}; the largest free block of any stream there is 0 bytes" in text
    said = f"The memory of MemPool {pool.id} comes from Limited, which says: 20.00 MiB more would exceed the limit"
    assert text.splitlines()[-1].startswith(said)
    assert inside is not None


@pytest.mark.usefixtures("gpu")
def test_memory_that_other_pools_keep_is_told_and_comes_back_as_told() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        memory(10 * GIB)
    text = refusal(8 * GIB)
    assert text.splitlines()[-1] == (
        f"10.00 GiB lie free in other memory pools, {pool.id}, which keep them as long as they live: delete MemPools "
        "and CUDA graphs that are needed no longer."
    )
    kept = memory(2 * GIB)
    assert "other memory pools" not in refusal(15 * GIB)  # they would not be enough
    del kept
    del pool
    assert memory(8 * GIB) is not None


@pytest.mark.usefixtures("gpu")
def test_a_capture_that_runs_out_names_record_stream() -> None:
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with pytest.raises(torch.OutOfMemoryError) as caught, torch.cuda.graph(graph):
        for _ in range(100):
            memory(600 * MIB).record_stream(side)
    text = str(caught.value)
    assert "wait for streams that record_stream named until the capture of the CUDA graph has ended." in text
    assert "What waits would be enough: use these tensors on their own streams, without record_stream" in text


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "recording",
    [{"enabled": "state"}, {"max_entries": 0}, {"skip_actions": ["alloc", "oom"]}, {"enabled": None}],
)
def test_what_a_recording_leaves_out_is_not_taken_for_what_helps(recording: dict[str, Any]) -> None:
    """Tensors and request do not fit together, so nothing does."""
    before = [memory(GIB) for _ in range(2)]
    torch.cuda.memory._record_memory_history(**recording)
    after = [memory(GIB) for _ in range(2)]
    assert "No setting would have made it fit" in refusal(13 * GIB)
    assert before and after


def small_device() -> tuple[CachingAllocator, object]:
    context = context_over(FakeDriver(capacity=100 * MIB))
    allocator = CachingAllocator(context)
    allocator.oom_advice = suggest_settings
    return allocator, stream_of(context, 1)


def refused(allocator: CachingAllocator, nbytes: int, stream: object) -> str:
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(nbytes, stream)
    return str(caught.value)


def test_requests_that_were_refused_before_do_not_count() -> None:
    allocator, stream = small_device()
    refused(allocator, 101 * MIB, stream)
    allocator.free(allocator.allocate(64 * MIB, stream))
    allocator.allocate(20 * MIB, stream)
    assert "With PYTORCH_ALLOC_CONF=expandable_segments:True this" in refused(allocator, 64 * MIB, stream)


def test_a_replay_knows_what_snapshots_leave_out() -> None:
    allocator, stream = small_device()
    allocator.record(Recording(skip=("alloc",)))
    block = allocator.allocate(2 * MIB, stream)
    assert [event["action"] for event in trace(allocator)] == ["segment_alloc"]
    assert [event["action"] for event in trace(allocator, orders=True)] == ["segment_alloc", "alloc"]
    assert block


def test_a_setting_that_helps_for_the_last_time_is_called_that() -> None:
    allocator, stream = small_device()
    allocator.free(allocator.allocate(40 * MIB, stream))
    for n in (22, 16, 16, 16):
        allocator.allocate(n * MIB, stream)
    said = refused(allocator, 29 * MIB, stream)
    assert "(replayed just now), with tensors in 100% of the memory: it will be short again soon." in said


def test_the_memory_that_it_would_take_is_hardly_more_than_needed() -> None:
    allocator, stream = small_device()
    held = [allocator.allocate(16 * MIB, stream) for _ in range(6)]
    for block in held[::2]:  # three of them could go back to the device
        allocator.free(block)
    said = refused(allocator, 80 * MIB, stream)
    assert "No setting would have made it fit (replayed: expandable_segments, max_split_size_mb, " in said
    found = re.search(r"With ([\d.]+) MiB in place of 100.00 MiB this request would have fitted\.", said)
    assert found is not None and 128 <= float(found[1]) <= 132


def run_until_refused(seed: int, settings: str) -> tuple[int, str]:
    """A program of random requests in a part of a GPU: after how many requests it was refused one, and how."""
    draw = random.Random(seed)
    with torch.virtual(devices=1, profile="v100-16g", data=False):
        torch.cuda.memory._set_allocator_settings(settings)
        torch.cuda.set_per_process_memory_fraction(draw.choice([0.02, 0.1]), 0)
        held: list[torch.Tensor] = []
        for count in range(1000):
            try:
                held.append(
                    memory(draw.choice([draw.randrange(1, 10 * MIB), draw.randrange(10 * MIB, 90 * MIB)]))
                )
            except torch.OutOfMemoryError as error:
                return count, str(error)
            while len(held) > 4 and draw.random() < 0.45:
                held.pop(draw.randrange(len(held)))
    raise AssertionError("it never ran out of memory")


@pytest.mark.parametrize("seed", range(12))
def test_the_program_gets_farther_with_the_setting_that_it_is_told(seed: int) -> None:
    count, text = run_until_refused(seed, "")
    told = re.search(r"With PYTORCH_ALLOC_CONF=(\S+) this very trace would have fitted", text)
    if told:
        assert run_until_refused(seed, told[1])[0] > count
    else:
        assert "No setting would have made it fit" in text
        assert run_until_refused(seed, "expandable_segments:True")[0] == count


def test_a_replay_goes_on_without_what_was_refused() -> None:
    entries = [
        {"action": "oom", "device_free": 0, "size": 90 * MIB, "stream": 0},
        {"action": "alloc", "addr": 1 << 30, "size": 30 * MIB, "stream": 0},
    ]
    events = events_of(entries)
    assert [event.action for event in events] == ["alloc", "free", "alloc"]
    assert play(events, 100 * MIB).fits and not play(events, 80 * MIB).fits


def test_a_replay_keeps_pools_apart() -> None:
    one = {"action": "alloc", "addr": 1 << 30, "size": 30 * MIB, "stream": 0, "pool_id": (0, 1)}
    entries = [one, one | {"action": "free_completed"}, one | {"pool_id": [0, 0]}]
    assert play(events_of(entries), 1 << 40).peak_reserved == 60 * MIB
    entries[2]["pool_id"] = (0, 1)
    assert play(events_of(entries), 1 << 40).peak_reserved == 30 * MIB


def test_a_pool_whose_memory_is_gone_keeps_none_in_replays() -> None:
    one = {"action": "alloc", "addr": 1 << 30, "size": 30 * MIB, "stream": 0, "pool_id": (0, 1)}
    entries = [one, one | {"action": "free_completed"}, one | {"pool_id": (0, 0)}]
    kept = {"stream": 0, "segment_pool_id": (0, 1), "blocks": []}
    assert play(events_of(entries, []), 1 << 40).peak_reserved == 30 * MIB
    assert play(events_of(entries, [kept]), 1 << 40).peak_reserved == 60 * MIB
    assert not play(events_of(entries, [kept]), 50 * MIB).fits  # what it keeps goes to nobody


def run_in_a_pool(settings: str) -> str:
    """Requests in a MemPool for which no free piece is large enough."""
    with torch.virtual(devices=1, profile="v100-16g", data=False):
        torch.cuda.memory._set_allocator_settings(settings)
        torch.cuda.set_per_process_memory_fraction(0.05)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held = [memory(5 * MIB) for _ in range(120)]
            del held[::2]
            with pytest.raises(torch.OutOfMemoryError) as caught:
                held += [memory(9 * MIB) for _ in range(25)]
    return str(caught.value)


def test_what_helps_no_pool_is_not_suggested_for_one() -> None:
    assert run_in_a_pool("expandable_segments:True")  # MemPools have segments of fixed sizes
    assert "expandable_segments:True this very trace" not in run_in_a_pool("")
    assert "Replayed from an empty device" not in run_in_a_pool("expandable_segments:True")
