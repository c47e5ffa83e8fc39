"""The target of an asynchronous copy to the host holds poison until the copy has run, and nothing else is disturbed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_kit import failing, upload

import flambeau as torch
from flambeau.core.device import CPU
from flambeau.core.dtype import float32
from flambeau.core.host_arrays import bytes_at
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.driver.virtual import VirtualDriver
from flambeau.driver.virtual.memory.arena import POISON

N = 16


def seen(memory):
    return bytes_at(memory.ptr, memory.nbytes).tolist()


@pytest.fixture
def driver():
    return VirtualDriver()


def pinned_of(driver, value):
    memory = driver.host_alloc(N)
    bytes_at(memory.ptr, N)[...] = value
    return memory


def test_a_target_holds_poison_until_its_copy_has_run(driver):
    ptr, memory = upload(driver, np.full(N, 5, np.uint8)), pinned_of(driver, 3)
    stream = driver.stream_default(0)
    driver.copy_out(memory.part(4, 8), ptr, stream)
    assert seen(memory) == [3] * 4 + [POISON] * 8 + [3] * 4
    driver.stream_sync(stream)
    assert seen(memory) == [3] * 4 + [5] * 8 + [3] * 4


def test_a_copy_that_raises_or_that_is_awaited_leaves_its_target(driver):
    ptr, memory, stream = (
        upload(driver, np.full(N, 5, np.uint8)),
        pinned_of(driver, 3),
        driver.stream_default(0),
    )
    with pytest.raises(RuntimeError):
        driver.copy_out(memory, ptr + (1 << 20), stream)
    with pytest.raises(RuntimeError):
        driver.copy_out(memory, ptr, 999)
    driver.copy_out(memory.part(0, 0), ptr, stream)
    memory.awaited = True
    driver.copy_out(memory, ptr, stream)
    assert seen(memory) == [3] * N
    driver.stream_sync(stream)
    assert seen(memory) == [5] * N


def test_what_earlier_commands_read_is_poisoned_when_they_have_run(driver):
    ptr, memory = upload(driver, np.full(N, 5, np.uint8)), pinned_of(driver, 3)
    stream = driver.stream_default(0)
    driver.copy_in(ptr, memory.part(0, 4), stream)
    event = driver.event_create(0, False)
    driver.event_record(event, stream)
    driver.copy_out(memory, ptr, stream)
    assert seen(memory) == [3] * 4 + [POISON] * 12
    driver.event_sync(event)
    assert seen(memory) == [POISON] * N
    driver.stream_sync(stream)
    assert seen(memory) == [3] * 4 + [5] * 12


def test_a_target_of_two_copies_is_poisoned_again(driver):
    ptr, memory, stream = (
        upload(driver, np.full(N, 5, np.uint8)),
        pinned_of(driver, 3),
        driver.stream_default(0),
    )
    driver.copy_out(memory.part(0, 8), ptr, stream)
    event = driver.event_create(0, False)
    driver.event_record(event, stream)
    driver.copy_out(memory.part(4, 8), ptr, stream)
    driver.event_sync(event)
    assert seen(memory) == [5] * 4 + [POISON] * 8 + [3] * 4


def test_a_graph_poisons_its_targets_at_each_launch(driver):
    ptr, memory = upload(driver, np.full(N, 5, np.uint8)), pinned_of(driver, 3)
    stream = driver.stream_create(0, 0)
    driver.capture_begin(stream, "global")
    driver.copy_out(memory, ptr, stream)
    graph = driver.capture_end(stream)
    assert seen(memory) == [3] * N
    for _ in range(2):
        driver.graph_launch(graph, stream)
        assert seen(memory) == [POISON] * N
        driver.stream_sync(stream)
        assert seen(memory) == [5] * N


def test_nothing_is_left_behind_by_a_device_that_fails(driver):
    ptr, memory, stream = (
        upload(driver, np.full(N, 5, np.uint8)),
        pinned_of(driver, 3),
        driver.stream_default(0),
    )
    meta = Meta.contiguous_of((1,), float32, CPU)
    exe = driver.load(Launch(failing(), (meta,), (meta,)), 0)
    driver.launch(exe, (ptr, ptr), (), stream)
    driver.copy_in(ptr, memory, stream)
    driver.copy_out(memory, ptr, stream)
    with pytest.raises(RuntimeError, match="device-side assert"):
        driver.stream_sync(stream)
    traffic = driver._core.host_memory_tracker
    assert not traffic._reads and not traffic._writes


def test_a_program_that_reads_too_early_sees_poison_without_the_race_detector():
    with torch.virtual(devices=1):
        h = torch.zeros(4, dtype=torch.uint8).pin_memory()
        h.copy_(torch.ones(4, dtype=torch.uint8, device="cuda"), non_blocking=True)
        assert h.tolist() == [POISON] * 4
        torch.cuda.synchronize()
        assert h.tolist() == [1] * 4


STEPS = st.tuples(
    st.sampled_from(["in", "out", "out", "call", "wait", "sync", "launch"]),
    st.integers(0, N - 1),
    st.integers(1, N),
)


@given(st.lists(STEPS, max_size=25))
def test_programs_of_one_stream_see_what_they_would_without_poison(steps):
    """Parts of one buffer are read and written by copies and host functions in their order: NumPy does the same."""
    driver = VirtualDriver()
    ptr = upload(driver, np.arange(N, dtype=np.uint8))
    memory, stream = pinned_of(driver, 3), driver.stream_create(0, 0)
    device, host, events = np.arange(N, dtype=np.uint8), np.full(N, 3, np.uint8), []
    window = bytes_at(memory.ptr, N)

    def reverse(array):
        array[...] = array[::-1].copy()

    for what, start, length in steps:
        n = min(length, N - start)
        if what in ("in", "launch"):
            if what == "launch":
                driver.capture_begin(stream, "global")
            driver.copy_in(ptr, memory.part(start, n), stream)
            if what == "launch":
                driver.graph_launch(driver.capture_end(stream), stream)
            device[:n] = host[start : start + n]
        elif what == "out":
            driver.copy_out(memory.part(start, n), ptr + N - n, stream)
            host[start : start + n] = device[N - n :]
        elif what == "call":
            driver.host_call(lambda: reverse(window), stream)
            reverse(host)
        elif what == "wait":
            event = driver.event_create(0, False)
            driver.event_record(event, stream)
            events.append(event)
        elif what == "sync" and events:
            driver.event_sync(events.pop(0))
    driver.stream_sync(stream)
    assert (window == host).all() and not driver._core.host_memory_tracker._writes
    out = driver.host_alloc(N)
    driver.copy_out(out, ptr, stream)
    driver.stream_sync(stream)
    assert seen(out) == device.tolist()
