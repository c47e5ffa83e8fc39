"""Virtual device memory: capacity, laziness, bounds, use after free, peers, closed machines, poison."""

import resource

import numpy as np
import pytest
from virtual_kit import ADD, adder, download, host, upload

from flambeau.core.device import CPU
from flambeau.core.dtype import float32, uint8
from flambeau.core.errors import DriverError, InvalidAddressError, NotSupportedError, OutOfMemoryError
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Kernel, Launch
from flambeau.driver.virtual import VirtualDriver
from flambeau.driver.virtual.memory.arena import Arena

GIB = 1 << 30


def test_out_of_memory_leaves_mem_info_and_says_the_figures():
    driver = VirtualDriver(1, "v100-16g")
    driver.mem_alloc(0, 10 * GIB)
    before = driver.mem_info(0)
    with pytest.raises(
        OutOfMemoryError, match=rf"{6 * GIB} bytes: {before[0]} of {before[1]} bytes are free"
    ):
        driver.mem_alloc(0, 6 * GIB)
    assert driver.mem_info(0) == before
    driver.mem_alloc(0, before[0])
    assert driver.mem_info(0)[0] == 0
    driver.close()


def test_a_context_takes_its_share():
    driver = VirtualDriver(1, "a100-40g")
    assert driver.mem_info(0) == (42505273344 - driver.profile.reserved, 42505273344)
    assert driver.device_properties(0).total_memory == 42505273344


def test_arenas_cost_nothing_until_they_are_written():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    drivers = [VirtualDriver(8, "a100-80g") for _ in range(2)]
    for driver in drivers:
        for index in range(8):
            ptr = driver.mem_alloc(index, 70 * GIB)
            driver.fill(ptr + 69 * GIB, 1, 4096, driver.stream_default(index))
            driver.device_sync(index)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux, bytes on macOS
    assert grown < 512 << 10
    for driver in drivers:
        driver.close()


def test_freed_pages_go_back_to_the_system():
    arena = Arena(1, 0, GIB, 0, poison=False)
    for _ in range(3):
        ptr = arena.allocate(256 << 20)
        assert not arena.bytes[ptr - arena.base : ptr - arena.base + (256 << 20)].any()
        arena.bytes[ptr - arena.base : ptr - arena.base + (256 << 20)] = 1
        arena.release(ptr)


def test_random_allocations_never_overlap_and_coalesce():
    arena, random, live = Arena(1, 0, 1 << 24, 0, poison=False), np.random.default_rng(0), {}
    for _ in range(3000):
        if live and random.random() < 0.5:
            ptr = list(live)[random.integers(len(live))]
            arena.release(ptr)
            del live[ptr]
            continue
        size = int(random.integers(1, 200_000))
        try:
            ptr = arena.allocate(size)
        except OutOfMemoryError:
            assert size > arena.free - 512  # holes keep nothing from fitting
            continue
        assert ptr % 512 == 0 and arena.base <= ptr and ptr + size <= arena.limit
        assert all(ptr + size <= other or other + n <= ptr for other, n in live.items())
        live[ptr] = size
        assert arena.free == (1 << 24) - sum(-(-n // 512) * 512 for n in live.values())
    for ptr in live:
        arena.release(ptr)
    assert arena.allocate(arena.free) == arena.base


def test_memory_in_pieces_serves_one_large_request():
    """As on hardware, where pages lie behind addresses in any order: PyTorch's users meet no fragmentation below its pools."""
    driver = VirtualDriver(1, "v100-16g")
    free, _ = driver.mem_info(0)
    part = free // 5 // 512 * 512
    first, second = driver.mem_alloc(0, 2 * part), driver.mem_alloc(0, part)
    driver.mem_free(first)
    large = driver.mem_alloc(0, 4 * part)
    assert large >= second + part or large + 4 * part <= second
    values = np.arange(8, dtype=np.float32)
    stream = driver.stream_default(0)
    for ptr in (second, large + 4 * part - 32):
        driver.copy_in(ptr, host(values), stream)
    out = np.zeros(8, np.float32)
    for ptr in (second, large + 4 * part - 32):
        driver.copy_out(host(out), ptr, stream)
        driver.device_sync(0)
        assert (out == values).all()
    with pytest.raises(OutOfMemoryError, match="bytes are free"):
        driver.mem_alloc(0, part)


def test_addresses_are_disjoint_and_no_host_pointers():
    driver = VirtualDriver(3)
    ptrs = [driver.mem_alloc(i, 4096) for i in range(3)]
    assert len({ptr >> 40 for ptr in ptrs}) == 3
    assert all(ptr >> 48 for ptr in ptrs)


@pytest.mark.parametrize("reach", ["launch", "copy_in", "copy_out", "copy", "fill"])
@pytest.mark.parametrize("fault", ["past the end", "freed", "before", "null", "host", "closed"])
def test_bad_addresses_are_refused_at_once_and_nothing_is_queued(reach, fault):
    older = VirtualDriver(1)
    closed = older.mem_alloc(0, 4096)
    older.close()
    driver = VirtualDriver(1)
    good, data = driver.mem_alloc(0, 8192), np.zeros(1024, np.float32)
    ptr = {"past the end": good + 4608, "freed": driver.mem_alloc(0, 8192), "before": good - 512, "null": 0,
           "host": host(data).ptr, "closed": closed}[fault]  # fmt: skip
    if fault == "freed":
        driver.mem_free(ptr)
    stream, exe = driver.stream_default(0), adder(driver)
    calls = {
        "launch": lambda: driver.launch(exe, (good, good, ptr), (), stream),
        "copy_in": lambda: driver.copy_in(ptr, host(data), stream),
        "copy_out": lambda: driver.copy_out(host(data), ptr, stream),
        "copy": lambda: driver.copy(good, ptr, 4096, stream),
        "fill": lambda: driver.fill(ptr, 0, 4096, stream),
    }
    trace = driver.trace_hash()
    with pytest.raises(InvalidAddressError, match=f"4096 bytes at {ptr:#x}") as caught:
        calls[reach]()
    if fault in ("past the end", "freed", "before"):
        assert f"nearest segment is {good:#x}" in str(caught.value)
    if fault == "closed":
        assert "machine that was opened before" in str(caught.value)
    driver.device_sync(0)
    assert driver.trace_hash() == trace


def test_kernels_need_peer_access_and_copies_do_not():
    driver = VirtualDriver(2, "a100")
    near, far = upload(driver, np.ones(1024, np.float32)), driver.mem_alloc(1, 4096)
    stream, exe = driver.stream_default(0), adder(driver)
    driver.copy(far, near, 4096, stream)
    with pytest.raises(InvalidAddressError, match="no peer access"):
        driver.launch(exe, (near, near, far), (), stream)
    with pytest.raises(InvalidAddressError, match="no peer access"):
        driver.fill(far, 0, 4096, stream)
    driver.peer_enable(0, 1)
    driver.launch(exe, (near, near, far), (), stream)
    assert (download(driver, near, 1024) == 2).all()
    assert (download(driver, far, 1024, index=1) == 1).all()


def test_peers_follow_the_profiles_links():
    with pytest.raises(NotSupportedError, match="RTX 4090"):
        VirtualDriver(2, "rtx4090").peer_enable(0, 1)
    mesh = VirtualDriver(8, "v100")
    assert [mesh.peer_can(0, i) for i in range(8)] == [False, True, True, True, True, False, False, False]
    assert all(VirtualDriver(8, "h100").peer_can(2, i) == (i != 2) for i in range(8))


def test_pinned_copies_are_asynchronous_and_pageable_ones_are_not():
    driver = VirtualDriver(1)
    ptr, stream = upload(driver, np.ones(1024, np.float32)), driver.stream_default(0)
    pinned, pageable = driver.host_alloc(4096), np.zeros(1024, np.float32)
    window = np.frombuffer(pinned.owner, np.uint8, 4096, pinned.ptr - pinned.owner.ctypes.data).view(
        np.float32
    )
    driver.copy_out(pinned, ptr, stream)
    assert not (window == 1).any()  # it holds poison
    assert not driver.stream_query(stream)
    driver.stream_sync(stream)
    assert (window == 1).all()
    driver.copy_out(host(pageable), ptr, stream)
    assert (pageable == 1).all()
    window[...] = 2
    driver.copy_in(ptr, pinned, stream)
    window[...] = 3  # a race of the program's: the copy reads when it runs
    assert (download(driver, ptr, 1024) == 3).all()


def test_poison_shows_fresh_memory_freed_blocks_and_costs_no_pages():
    driver = VirtualDriver(1, "a100-80g", poison=True)
    assert driver.observes_blocks
    assert not VirtualDriver(1).observes_blocks
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ptr, stream = driver.mem_alloc(0, 60 * GIB), driver.stream_default(0)
    driver.block_alloc(ptr, 60 * GIB, stream)
    driver.stream_sync(stream)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
    assert (download(driver, ptr + 5 * GIB, 100, np.uint8) == 0xCB).all()
    driver.fill(ptr, 0, 4096, stream)
    assert (download(driver, ptr, 8192, np.uint8) == [0] * 4096 + [0xCB] * 4096).all()
    driver.block_free(ptr + 1024, 1024, stream)
    assert (download(driver, ptr, 3072, np.uint8) == [0] * 1024 + [0xCB] * 1024 + [0] * 1024).all()
    driver.mem_free(ptr)
    again = driver.mem_alloc(0, 4096)
    assert again == ptr
    assert (download(driver, again, 4096, np.uint8) == 0xCB).all()


def test_poison_is_ordered_on_the_blocks_stream():
    driver = VirtualDriver(1, poison=True)
    ptr, stream = upload(driver, np.ones(1024, np.float32)), driver.stream_create(0, 0)
    out = driver.mem_alloc(0, 4096)
    driver.copy(out, ptr, 4096, stream)
    driver.block_free(ptr, 4096, stream)
    driver.stream_sync(stream)
    assert (download(driver, out, 1024) == 1).all()
    assert (download(driver, ptr, 4096, np.uint8) == 0xCB).all()


def test_poison_reaches_kernels_inputs():
    driver = VirtualDriver(1, poison=True)
    meta = Meta.contiguous_of((4096,), uint8, CPU)
    move = Kernel("move", lambda launch: lambda outputs, inputs: np.copyto(outputs[0], inputs[0]))
    exe = driver.load(Launch(move, (meta,), (meta,)), 0)
    source, target = driver.mem_alloc(0, 4096), driver.mem_alloc(0, 4096)
    driver.launch(exe, (target, source), (), driver.stream_default(0))
    assert (download(driver, target, 4096, np.uint8) == 0xCB).all()


def test_host_free_refuses_what_it_did_not_give():
    driver = VirtualDriver(1)
    with pytest.raises(DriverError, match="pinned"):
        driver.host_free(host(np.zeros(4, np.float32)))


def test_a_view_of_expanded_memory_checks_its_span_alone():
    driver = VirtualDriver(1)
    out = Meta.contiguous_of((1000, 1024), float32, CPU)
    exe = driver.load(Launch(ADD, (out,), (out.with_(strides=(0, 1)), out.with_(strides=(0, 0)))), 0)
    row, one = upload(driver, np.arange(1024, dtype=np.float32)), upload(driver, np.ones(1, np.float32))
    ptr = driver.mem_alloc(0, out.nbytes)
    driver.launch(exe, (ptr, row, one), (), driver.stream_default(0))
    assert (download(driver, ptr, 1024 * 1000).reshape(1000, 1024) == np.arange(1024) + 1).all()
