"""Time of 51 representative calls on the CPU, or of 72 on a GPU, next to PyTorch, on one thread.

Prints microseconds of processor time (best of many blocks) and the ratio ours / PyTorch's. Small tensors show the
cost of a call, large ones that of the arithmetic. `python bench/operators.py [part of a name]`; with `--driver cuda` 72
calls on an NVIDIA GPU, compared with PyTorch on that GPU, see gpu_operators.py.
"""

# ruff: noqa: E402 (the number of threads is fixed before NumPy is imported)

from __future__ import annotations

import argparse
import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[_name] = "1"  # as PyTorch's, see main

import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import flambeau

BLOCKS, BLOCK_S = 15, 0.004
SMALL, LARGE = 1024, 1 << 20

CALLS = {
    # the cost of a call: 1,024 floats
    "a + b": lambda m, t: t.a + t.b,
    "a.add_(b)": lambda m, t: t.a.add_(t.b),
    "torch.add(a, b, alpha=2)": lambda m, t: m.add(t.a, t.b, alpha=2),
    "a ** 2": lambda m, t: t.a**2,
    "a > 0": lambda m, t: t.a > 0,
    "torch.where(a > 0, a, b)": lambda m, t: m.where(t.mask, t.a, t.b),
    "a.clamp(0, 1)": lambda m, t: t.a.clamp(0, 1),
    "a.relu()": lambda m, t: t.a.relu(),
    "h + h (float16)": lambda m, t: t.h + t.h,
    "i // 3": lambda m, t: t.i // 3,
    "m + row (broadcasts)": lambda m, t: t.m + t.row,
    "a.sum()": lambda m, t: t.a.sum(),
    "m.max(1)": lambda m, t: t.m.max(1),
    "m @ m": lambda m, t: t.m @ t.m,
    "torch.zeros(1024)": lambda m, t: m.zeros(SMALL),
    "a.clone()": lambda m, t: t.a.clone(),
    "a.double()": lambda m, t: t.a.double(),
    "a.sum().item()": lambda m, t: t.a.sum().item(),
    "torch.cat([a, b])": lambda m, t: m.cat([t.a, t.b]),
    "m[3:9, 1]": lambda m, t: t.m[3:9, 1],
    # the cost of the arithmetic: 2**20 floats, or an everyday layer
    "A + B": lambda m, t: t.A + t.B,
    "A.exp()": lambda m, t: t.A.exp(),
    "A.tanh()": lambda m, t: t.A.tanh(),
    "A.sum()": lambda m, t: t.A.sum(),
    "M.sum(0)": lambda m, t: t.M.sum(0),
    "M.max(1)": lambda m, t: t.M.max(1),
    "A.cumsum(0)": lambda m, t: t.A.cumsum(0),
    "A.sort()": lambda m, t: t.A.sort(),
    "A.to(float16)": lambda m, t: t.A.to(m.float16),
    "A.to(bfloat16)": lambda m, t: t.A.to(m.bfloat16),
    "H.float()": lambda m, t: t.H.float(),
    "A.clamp(0.2, 0.8)": lambda m, t: t.A.clamp(0.2, 0.8),
    "F.gelu(A)": lambda m, t: m.nn.functional.gelu(t.A),
    "F.softmax(M, 1)": lambda m, t: m.nn.functional.softmax(t.M, 1),
    "F.layer_norm(M)": lambda m, t: m.nn.functional.layer_norm(t.M, (1024,), t.M[0], t.M[1]),
    "M.t().contiguous()": lambda m, t: t.M.t().contiguous(),
    "M @ M": lambda m, t: t.M @ t.M,
    "torch.bmm (32, 128, 128)": lambda m, t: m.bmm(t.batch, t.batch),
    "F.conv2d (8, 32, 28, 28) k3": lambda m, t: m.nn.functional.conv2d(t.images, t.filters, padding=1),
    "F.max_pool2d 2": lambda m, t: m.nn.functional.max_pool2d(t.images, 2),
    "F.batch_norm": lambda m, t: m.nn.functional.batch_norm(t.images, None, None, training=True),
    "F.interpolate bilinear x2": lambda m, t: m.nn.functional.interpolate(t.images, scale_factor=2, mode="bilinear"),
    "F.cross_entropy (1024, 1024)": lambda m, t: m.nn.functional.cross_entropy(t.M, t.labels),
    "F.embedding 8192 of 1024": lambda m, t: m.nn.functional.embedding(t.words, t.M),
    "x.index_add_(0, i, y)": lambda m, t: t.sums.index_add_(0, t.labels, t.M),
    "attention (4, 8, 128, 64)": lambda m, t: m.nn.functional.scaled_dot_product_attention(t.heads, t.heads, t.heads),
    "torch.fft.fft (1024, 1024)": lambda m, t: m.fft.fft(t.M),
    "torch.linalg.svd 128": lambda m, t: m.linalg.svd(t.square),
    "M[mask]": lambda m, t: t.M[t.chosen],
    "torch.topk(M, 8)": lambda m, t: m.topk(t.M, 8),
    "torch.rand(2**20)": lambda m, t: m.rand(LARGE),
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
        self.H, self.M = self.A.to(m.float16), self.A.view(1024, 1024)
        self.batch, self.square = m.rand(32, 128, 128), m.rand(128, 128)
        self.images, self.filters = m.rand(8, 32, 28, 28), m.rand(32, 32, 3, 3)
        self.labels, self.words = m.randint(1024, (1024,)), m.randint(1024, (8192,))
        self.sums, self.heads = m.zeros(1024, 1024), m.rand(4, 8, 128, 64)
        self.chosen = self.M > 0.5


def microseconds(run: Callable[[], Any]) -> float:
    """Return the mean processor time of the fastest block, which other work on the machine disturbs least."""
    run()
    start = time.process_time()
    run()
    repeats = max(1, int(BLOCK_S / (time.process_time() - start + 1e-7)))
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.process_time()
        for _ in range(repeats):
            run()
        best = min(best, (time.process_time() - start) / repeats)
    return best * 1e6


def on_cpu(part: str) -> None:
    """Print the table of calls whose name has this part."""
    torch = import_module("torch")
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
        print(f"{len(ratios)} calls; median ratio {statistics.median(ratios):.2f}; largest {max(ratios):.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("part", nargs="?", default="", help="only calls whose name has this part")
    options.add_argument("--driver", choices=["cpu", "cuda"], default="cpu")
    options.add_argument(
        "--limit", type=float, default=110, help="seconds after which no call on a GPU is begun"
    )
    given = options.parse_args()
    if given.driver == "cpu":
        on_cpu(given.part)
        return
    import gpu_operators

    gpu_operators.main(given.part, given.limit)


if __name__ == "__main__":
    main()
