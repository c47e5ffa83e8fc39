"""Microseconds per allocation and free of the allocators, over a driver that does nothing.

    python bench/allocator.py

"warm": one size again and again, the hot path. "slots": a random one of 256 slots is replaced by a block of
a random size. "live": the same beside ever more live blocks; the cost must not grow.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from flambeau.driver.api import HostMemory
from flambeau.runtime.allocator import CachingAllocator
from flambeau.runtime.host_allocator import HostAllocator
from flambeau.runtime.orders import Orders
from flambeau.runtime.pinned import PinnedAllocator
from flambeau.runtime.statistics import ALL, ALLOCATED_BYTES, RESERVED_BYTES


class NullDriver:
    """Addresses without memory."""

    observes_blocks = False

    def __init__(self) -> None:
        self._next = 1 << 40

    def mem_alloc(self, index: int, nbytes: int) -> int:
        ptr, self._next = self._next, self._next + nbytes
        return ptr

    def mem_free(self, ptr: int) -> None:
        pass

    def host_alloc(self, nbytes: int) -> HostMemory:
        return HostMemory(self.mem_alloc(0, nbytes), nbytes, None, pinned=True)


def best_us(run: Callable[[int], None], count: int, rounds: int = 7) -> float:
    """The shortest of some rounds, per repetition."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run(count)
        best = min(best, time.perf_counter() - start)
    return best / count * 1e6


def device_allocator() -> tuple[CachingAllocator, Any]:
    context: Any = SimpleNamespace(
        driver=NullDriver(), driver_index=0, index=0, closed=False, orders=Orders()
    )
    return CachingAllocator(context), SimpleNamespace(handle=1, context=context)


def warm(allocate: Callable[..., Any], free: Callable[[Any], None], *args: Any) -> float:
    def run(count: int) -> None:
        for _ in range(count):
            free(allocate(*args))

    return best_us(run, 100_000)


def slots(lowest: int, highest: int, live: int = 0) -> tuple[float, float]:
    """(us per replaced slot, reserved bytes / peak of allocated bytes)."""
    allocator, stream = device_allocator()
    rng = random.Random(0)
    kept = [allocator.allocate(rng.randrange(lowest, highest), stream) for _ in range(live)]
    held = [allocator.allocate(512, stream) for _ in range(256)]
    plan = np.random.default_rng(0)

    def run(count: int) -> None:
        places = plan.integers(0, 256, count).tolist()
        sizes = plan.integers(lowest, highest, count).tolist()
        for place, size in zip(places, sizes, strict=True):
            allocator.free(held[place])
            held[place] = allocator.allocate(size, stream)

    us = best_us(run, 10_000, rounds=3)
    ledger = allocator.ledger()
    assert len(kept) == live
    return us, ledger.peak[ALL][RESERVED_BYTES] / ledger.peak[ALL][ALLOCATED_BYTES]


def main() -> None:
    allocator, stream = device_allocator()
    host = HostAllocator(stream.context)
    pinned = PinnedAllocator(stream.context.driver)

    def look(count: int) -> None:
        for _ in range(count):
            allocator.allocated_bytes()

    print(f"warm    device    {warm(allocator.allocate, allocator.free, 4096, stream):8.2f} us")
    print(f"warm    host      {warm(host.allocate, host.free, 4096, stream):8.2f} us")
    print(f"warm    pinned    {warm(pinned.allocate, pinned.free, 1 << 20):8.2f} us")
    print(f"figures allocated {best_us(look, 50_000):8.2f} us")
    for lowest, highest in ((64, 1 << 20), (64, 16 << 20)):
        us, ratio = slots(lowest, highest)
        print(f"slots   {lowest} B to {highest >> 20:2} MiB {us:6.2f} us, reserved / peak {ratio:.3f}")
    for live in (100, 10_000, 100_000):
        print(f"live    {live:9} {slots(64, 65536, live)[0]:8.2f} us")


if __name__ == "__main__":
    main()
