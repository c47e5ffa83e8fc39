"""Commands per second that the explorer orders, without kernels, by streams and size of the graph.

`python bench/explore.py`. The aim is 100,000 a second; a signature of the order is counted in.
"""

from __future__ import annotations

import time

import flambeau as torch
from flambeau.testing.conflicts import Conflicts

POLICIES = ("random:0", "pct:0:3", "adversarial:0")


def graph_of(commands: int, streams: int) -> object:
    """Record a program whose streams each add to a separate tensor and sometimes wait for a neighbour."""
    with torch.virtual(devices=1) as machine:
        graph = machine.driver.record()
        side = [torch.cuda.Stream() for _ in range(streams)]
        tensors = []
        for stream in side:
            with torch.cuda.stream(stream):
                tensors.append(torch.zeros(16, device="cuda"))
        for i in range(commands):
            at = i % streams
            with torch.cuda.stream(side[at]):
                tensors[at].add_(1)
                if i % 16 == 0:
                    tensors[at - 1].add_(1)  # unordered with its owner: a conflict
            if i % 8 == 0:
                side[at].wait_stream(side[at - 1])
        torch.cuda.synchronize()
    return graph


def main() -> None:
    print(f"{'commands':>9} {'streams':>8} {'pairs':>8}" + "".join(f"{p + ', 1/s':>20}" for p in POLICIES))
    sizes = [(10_000, streams) for streams in (1, 8, 32, 128, 512)]
    for commands, streams in ((1_000, 2), *sizes, (50_000, 16)):
        graph = graph_of(commands, streams)
        conflicts = Conflicts(graph, limit=2_000)
        rates = []
        for policy in POLICIES:
            start = time.perf_counter()
            order = graph.order(policy)
            conflicts.signature(order)
            rates.append(len(order) / (time.perf_counter() - start))
        print(
            f"{commands:>9,} {streams:>8} {len(conflicts.pairs):>8,}" + "".join(f"{r:>20,.0f}" for r in rates)
        )


if __name__ == "__main__":
    main()
