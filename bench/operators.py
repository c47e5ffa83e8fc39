"""CPU time of 40 representative calls beside PyTorch's CPU build, both in one run; PyTorch on one thread.

Prints microseconds (best of many blocks) and the ratio ours / PyTorch's. Small tensors show the cost of a call,
large ones that of the arithmetic. `python bench/operators.py [part of a name]`
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import flambeau

BLOCKS, BLOCK_S = 15, 0.004
SMALL, LARGE = 1024, 1 << 20

CALLS = {
    # the cost of a call: 1,024 floats
    "a + b": lambda m, t: t.a + t.b,
    "a + 2": lambda m, t: t.a + 2,
    "2 * a": lambda m, t: 2 * t.a,
    "a.add_(b)": lambda m, t: t.a.add_(t.b),
    "torch.add(a, b, out=c)": lambda m, t: m.add(t.a, t.b, out=t.c),
    "torch.add(a, b, alpha=2)": lambda m, t: m.add(t.a, t.b, alpha=2),
    "a / b": lambda m, t: t.a / t.b,
    "a ** 2": lambda m, t: t.a**2,
    "-a": lambda m, t: -t.a,
    "a > 0": lambda m, t: t.a > 0,
    "torch.maximum(a, b)": lambda m, t: m.maximum(t.a, t.b),
    "torch.where(a > 0, a, b)": lambda m, t: m.where(t.mask, t.a, t.b),
    "a.clamp(0, 1)": lambda m, t: t.a.clamp(0, 1),
    "a.exp()": lambda m, t: t.a.exp(),
    "a.tanh()": lambda m, t: t.a.tanh(),
    "a.relu()": lambda m, t: t.a.relu(),
    "h + h (float16)": lambda m, t: t.h + t.h,
    "i + i (int64)": lambda m, t: t.i + t.i,
    "i // 3": lambda m, t: t.i // 3,
    "a + i (promotes)": lambda m, t: t.a + t.i,
    "m + row (broadcasts)": lambda m, t: t.m + t.row,
    "m.t() + m (strided)": lambda m, t: t.m.t() + t.m,
    "a.sum()": lambda m, t: t.a.sum(),
    "a.mean()": lambda m, t: t.a.mean(),
    "m.sum(0)": lambda m, t: t.m.sum(0),
    "m.max(1)": lambda m, t: t.m.max(1),
    "m.argmax(1)": lambda m, t: t.m.argmax(1),
    "a.cumsum(0)": lambda m, t: t.a.cumsum(0),
    "a.sort()": lambda m, t: t.a.sort(),
    "m @ m": lambda m, t: t.m @ t.m,
    "torch.zeros(1024)": lambda m, t: m.zeros(SMALL),
    "a.clone()": lambda m, t: t.a.clone(),
    "a.double()": lambda m, t: t.a.double(),
    "a.sum().item()": lambda m, t: t.a.sum().item(),
    "torch.cat([a, b])": lambda m, t: m.cat([t.a, t.b]),
    "m[3:9, 1]": lambda m, t: t.m[3:9, 1],
    # the cost of the arithmetic: 2**20 floats
    "A + B": lambda m, t: t.A + t.B,
    "A.exp()": lambda m, t: t.A.exp(),
    "A.sum()": lambda m, t: t.A.sum(),
    "A.to(float16)": lambda m, t: t.A.to(m.float16),
}  # fmt: skip


class Tensors:
    """The operands of every call, of one library."""

    def __init__(self, m: Any) -> None:
        m.manual_seed(0)
        self.a, self.b, self.c = m.rand(SMALL), m.rand(SMALL), m.zeros(SMALL)
        self.mask = self.a > 0.5
        self.h = self.a.to(m.float16)
        self.i = m.arange(SMALL)
        self.m, self.row = m.rand(32, 32), m.rand(32)
        self.A, self.B = m.rand(LARGE), m.rand(LARGE)


def microseconds(run: Callable[[], Any]) -> float:
    """The best block's mean: what the call costs when nothing disturbs it."""
    run()
    start = time.perf_counter()
    run()
    repeats = max(1, int(BLOCK_S / (time.perf_counter() - start + 1e-7)))
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best * 1e6


def main(part: str = "") -> None:
    torch.set_num_threads(1)
    ours, theirs = Tensors(flambeau), Tensors(torch)
    ratios = []
    print(f"{'':28}{'Flambeau us':>12}{'PyTorch us':>12}{'ratio':>8}")
    for name, call in CALLS.items():
        if part not in name:
            continue
        mine = microseconds(lambda call=call: call(flambeau, ours))  # type: ignore[misc]
        other = microseconds(lambda call=call: call(torch, theirs))  # type: ignore[misc]
        ratios.append(mine / other)
        print(f"{name:28}{mine:12.2f}{other:12.2f}{ratios[-1]:8.2f}")
    if ratios:
        print(f"{len(ratios)} calls; median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
