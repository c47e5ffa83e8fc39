"""Time of an allocation and a free in microseconds, and reserved per used bytes, on recorded traces.

    python bench/allocator.py

Over a driver that does nothing, so that only the allocator is measured. Where the machine has a GPU and PyTorch or
CuPy, their allocators play the same traces on the GPU, and so does ours.

"warm": one size again and again, the hot path. "slots": a random one of 256 slots is replaced by a block of a random
size. "live": the same with more and more live blocks; the cost must not grow. "MLP", "CNN", "GPT": training steps,
recorded on a virtual GPU and made larger.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

import flambeau
from flambeau import nn
from flambeau.core.device import device
from flambeau.driver.driver_registry import why_no_gpu
from flambeau.driver.protocol import DeviceProperties, HostMemory
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_statistics import ALL, ALLOCATED_BYTES, RESERVED_BYTES
from flambeau.runtime.memory.history import Recording
from flambeau.runtime.memory.host_allocator import HostAllocator
from flambeau.runtime.memory.pinned import PinnedAllocator
from flambeau.runtime.memory_reports.replay import Event, events_of

MIB = 1 << 20
LARGER = 64  # how much larger than on the virtual GPU the blocks of training steps are


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

    def device_properties(self, index: int) -> DeviceProperties:
        return DeviceProperties("null", 0, 0, 1 << 60, 1)

    def host_alloc(self, nbytes: int) -> HostMemory:
        return HostMemory(self.mem_alloc(0, nbytes), nbytes, None, pinned=True)


def best_us(run: Callable[[int], None], count: int, rounds: int = 7) -> float:
    """Return the microseconds per repetition in the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run(count)
        best = min(best, time.perf_counter() - start)
    return best / count * 1e6


def device_allocator() -> tuple[CachingAllocator, Any]:
    context = Context(device("cuda", 0), 0, NullDriver(), 0)  # type: ignore[arg-type]
    return CachingAllocator(context), SimpleNamespace(handle=1, context=context)


def warm(allocate: Callable[..., Any], free: Callable[[Any], None], *args: Any) -> float:
    def run(count: int) -> None:
        for _ in range(count):
            free(allocate(*args))

    return best_us(run, 100_000)


# -- traces -------------------------------------------------------------------------------------------------------


def slots(lowest: int, highest: int, count: int = 20_000) -> list[tuple[int, int]]:
    """Return pairs (slot, size): a block of that size replaces the one in a random slot of 256."""
    rng = np.random.default_rng(0)
    return list(
        zip(rng.integers(0, 256, count).tolist(), rng.integers(lowest, highest, count).tolist(), strict=True)
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 64, 10),
    )  # fmt: skip


def gpt() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 16, 10))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (64, 256)), "CNN": (cnn, (16, 1, 16, 16)), "GPT": (gpt, (8, 16, 64)),
}  # fmt: skip


def training(name: str, steps: int = 6) -> list[Event]:
    """Return the requests of some training steps with batches of varying size."""
    make, shape = PROGRAMS[name]
    with flambeau.virtual(devices=1, races="off"):
        allocator: Any = flambeau.runtime.system.contexts()[0].allocator
        allocator.record(Recording(context=None))
        net = make().cuda()
        optimizer = flambeau.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            batch = (shape[0] + 4 * (step % 3), *shape[1:])
            loss = nn.functional.cross_entropy(
                net(flambeau.randn(batch, device="cuda")),
                flambeau.zeros(batch[0], dtype=flambeau.int64, device="cuda"),
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        del net, optimizer, loss
        gc.collect()
        return events_of(flambeau.runtime.memory_reports.snapshot.trace(allocator))


# -- players ------------------------------------------------------------------------------------------------------

Player = tuple[Callable[[int], Any], Callable[[Any], None]]


def play_events(player: Player, events: list[Event]) -> float:
    """Microseconds per allocation and free."""
    allocate, free = player
    steps = [(e.action == "alloc", e.key, max(e.nbytes * LARGER, 1)) for e in events]

    def run(count: int) -> None:
        for _ in range(count):
            held = {}
            for is_new, key, nbytes in steps:
                if is_new:
                    held[key] = allocate(nbytes)
                else:
                    free(held.pop(key))
            for block in held.values():
                free(block)

    return best_us(run, 3) * 2 / len(events)


def play_slots(player: Player, plan: list[tuple[int, int]]) -> float:
    allocate, free = player
    held = [allocate(512) for _ in range(256)]

    def run(count: int) -> None:
        for place, nbytes in plan:
            free(held[place])
            held[place] = allocate(nbytes)

    us = best_us(run, 1, rounds=5) / len(plan)
    for block in held:
        free(block)
    return us


def ours() -> tuple[Player, Callable[[], float]]:
    allocator, stream = device_allocator()

    def ratio() -> float:
        peak = allocator.ledger().peak[ALL]
        return peak[RESERVED_BYTES] / peak[ALLOCATED_BYTES]

    return (lambda nbytes: allocator.allocate(nbytes, stream), allocator.free), ratio


def others() -> Iterator[tuple[str, Player]]:
    """Allocators on this machine's GPU."""
    if why_no_gpu():
        return
    context = flambeau.runtime.system.contexts()[0]
    allocator, stream = context.allocator, context.default_stream
    yield "ours on the GPU", (lambda nbytes: allocator.allocate(nbytes, stream), allocator.free)
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            yield "PyTorch", (partial(torch.empty, dtype=torch.uint8, device="cuda"), lambda block: None)
    if find_spec("cupy") is not None:
        import cupy

        yield "CuPy", (cupy.cuda.alloc, lambda block: None)


def growth(live: int) -> float:
    """Return microseconds per replaced slot while the given number of other blocks live."""
    allocator, stream = device_allocator()
    rng = random.Random(0)
    kept = [allocator.allocate(rng.randrange(64, 65536), stream) for _ in range(live)]
    us = play_slots((lambda n: allocator.allocate(n, stream), allocator.free), slots(64, 65536, 5000))
    assert len(kept) == live
    return us


def main() -> None:
    print("compiled" if flambeau.runtime.memory.heap.__file__.endswith(".so") else "plain Python")
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
    allocator.record(Recording())
    print(f"warm    recorded  {warm(allocator.allocate, lambda b: allocator.free(b), 4096, stream):8.2f} us")
    recorded = {
        name: training(name) for name in PROGRAMS
    }  # virtual GPUs first: they need real ones to be closed
    on_gpu = list(others())
    for highest in (1, 16):
        plan, (player, ratio) = slots(64, highest * MIB), ours()
        print(
            f"slots   64 B to {highest:2} MiB {play_slots(player, plan):6.2f} us, reserved / peak {ratio():.3f}"
        )
        for name, other in on_gpu:
            print(f"        {name:18} {play_slots(other, plan):6.2f} us")
    for name, events in recorded.items():
        player, ratio = ours()
        us = play_events(player, events)
        print(f"{name:7} {len(events):6} events {us:8.2f} us, reserved / peak {ratio():.3f}")
        for other_name, other in on_gpu:
            print(f"        {other_name:18} {play_events(other, events):6.2f} us")
    for live in (100, 10_000, 1_000_000):
        print(f"live    {live:9} {growth(live):8.2f} us")


if __name__ == "__main__":
    main()
