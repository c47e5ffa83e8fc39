"""Memory that goes from stream to stream is never used too early: many programs, each under a schedule of its own.

Each stream touches its own temporaries only, so a program has no race of its own: every race that the detector found
would be the allocator's. FLAMBEAU_HUNT_SEEDS sets how many programs run.
"""

from __future__ import annotations

import os
import random

import flambeau as torch

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
SEEDS = int(os.environ.get("FLAMBEAU_HUNT_SEEDS", "10000" if EXHAUSTIVE else "60"))
SIZES = (300_000, 300_000, 700_000, 1_500_000, 3_000_000)  # elements: some share a segment, some have one


def program(seed: int) -> int:
    """Run one; how many blocks went to a stream that they did not come from."""
    rng = random.Random(seed)
    streams = [torch.cuda.Stream() for _ in range(3)]
    came_from: dict[int, int] = {}
    moved = 0
    for step in range(14):
        stream = rng.choice(streams)
        for other in streams:
            if other is not stream and rng.random() < 0.4:
                stream.wait_stream(other)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(rng.randrange(1, 10**6))
            size = rng.choice(SIZES)
            x = torch.full((size,), float(step), device="cuda")
            y = x + 1 if rng.random() < 0.5 else x.mul_(1)
            for t in (x, y):
                ptr = t.memory.ptr
                moved += came_from.get(ptr, stream.cuda_stream) != stream.cuda_stream
                came_from[ptr] = stream.cuda_stream
            if rng.random() < 0.1:
                stream.synchronize()
                assert set(y[:: size // 7].tolist()) <= {float(step), float(step + 1)}
            del x, y, t
    torch.cuda.synchronize()
    return moved


def test_memory_moves_between_streams_and_never_too_early() -> None:
    moved = 0
    for seed in range(SEEDS):
        kind = ("random", "adversarial", "earliest")[seed % 3]
        schedule = kind if kind == "earliest" else f"{kind}:{seed}"
        with torch.virtual(devices=1, profile="v100-16g", schedule=schedule, races="error"):
            moved += program(seed)
    assert moved > SEEDS  # else nothing was tested


def test_an_allocator_that_forgets_to_ask_is_caught() -> None:
    """The same programs find the race where the order is not looked at."""
    from flambeau.runtime.memory.cross_stream_reuse import HappensBefore

    real = HappensBefore.is_ordered_before_stream
    HappensBefore.is_ordered_before_stream = lambda self, block: True  # type: ignore[method-assign]
    caught = 0
    try:
        for seed in range(20):
            try:
                with torch.virtual(devices=1, profile="v100-16g", races="error"):
                    program(seed)
            except torch.RaceError:
                caught += 1
    finally:
        HappensBefore.is_ordered_before_stream = real  # type: ignore[method-assign]
    assert caught > 5
