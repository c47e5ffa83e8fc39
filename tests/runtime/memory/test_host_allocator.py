"""Memory of CPU tensors: aligned, kept for the next request of its size, bounded."""

from __future__ import annotations

import random
import threading

from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver

from flambeau.core.device import CPU
from flambeau.driver.host.driver import HostDriver
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.host_allocator import KEPT_PER_SIZE, KEPT_SIZES, HostAllocator


def make() -> tuple[HostAllocator, FakeDriver, object]:
    driver = FakeDriver()
    context = context_over(driver)
    return HostAllocator(context), driver, stream_of(context, -1)


def test_a_freed_block_serves_the_next_request_of_its_size() -> None:
    allocator, driver, stream = make()
    block = allocator.allocate(1000, stream)
    allocator.free(block)
    calls = driver.calls
    assert allocator.allocate(1024, stream) is block
    assert allocator.allocate(1000, stream) is not block
    assert block.size == 1024
    assert driver.calls == calls + 1


def test_large_memory_goes_back_at_once() -> None:
    allocator, driver, stream = make()
    allocator.free(allocator.allocate(MIB + 1, stream))
    assert not driver.sizes
    allocator.free(allocator.allocate(MIB, stream))
    assert driver.used == MIB


def test_zero_bytes_are_at_address_zero() -> None:
    allocator, driver, stream = make()
    block = allocator.allocate(0, stream)
    allocator.free(block)
    assert (block.ptr, block.size, driver.calls) == (0, 0, 0)


def test_what_is_kept_is_bounded() -> None:
    allocator, driver, stream = make()
    for size in (MIB, MIB // 2, 300_000, 64):
        blocks = [allocator.allocate(size, stream) for _ in range(2 * MIB // size // 8 + 3)]
        for block in blocks:
            allocator.free(block)
        assert sum(s for s in driver.sizes.values() if s == blocks[0].size) <= KEPT_PER_SIZE
    for size in range(900_000, 900_000 + 64 * 200, 64):
        allocator.free(allocator.allocate(size, stream))
    assert driver.used <= KEPT_SIZES * KEPT_PER_SIZE
    allocator.empty_cache()
    assert not driver.sizes


def test_a_size_given_up_takes_nothing_back() -> None:
    allocator, driver, stream = make()
    old = allocator.allocate(64, stream)
    for i in range(KEPT_SIZES):
        allocator.free(allocator.allocate(6400 + 64 * i, stream))
    allocator.free(old)
    assert old.ptr not in driver.sizes


def test_free_after_close_is_quiet() -> None:
    allocator, driver, stream = make()
    block = allocator.allocate(2 * MIB, stream)
    allocator._context.closed = True
    calls = driver.calls
    allocator.free(block)
    assert driver.calls == calls


def test_memory_of_the_real_driver_is_aligned() -> None:
    context = Context(CPU, -1, HostDriver(), 0)
    allocator = HostAllocator(context)
    stream = stream_of(context, -1)
    for size in (1, 63, 64, 65, 4096, 3 * MIB):
        block = allocator.allocate(size, stream)
        assert block.ptr % 64 == 0
        allocator.free(block)


def test_eight_threads_never_share_a_block() -> None:
    allocator, driver, stream = make()
    owners: dict[int, int] = {}
    failures: list[int] = []

    def run(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            block = allocator.allocate(rng.choice([64, 640, 6400]) * rng.randrange(1, 30), stream)
            if owners.setdefault(block.ptr, seed) != seed:
                failures.append(seed)
            del owners[block.ptr]
            allocator.free(block)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    allocator.empty_cache()
    assert not driver.sizes
