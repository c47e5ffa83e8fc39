"""Host time of calls whose shape was never seen before, beside those of a shape that was, here and in PyTorch.

`python bench/new_shapes.py [--device cuda|cpu] [--alone]`.

Each call runs once for each of 400 shapes, and 400 times with one shape; the lower quartile of the single times is
printed, in microseconds. Both libraries run in one process; `--alone` leaves PyTorch out.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

SHAPES = 400
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "x + x": lambda m, x: x + x,
    "x * 2.0": lambda m, x: x * 2.0,
    "x.relu()": lambda m, x: x.relu(),
    "F.gelu(x)": lambda m, x: m.nn.functional.gelu(x),
    "torch.empty": lambda m, x: m.empty(x.shape[0] * 3 + 1, device=x.device),
    "x.view(-1)": lambda m, x: x.view(-1),
    "x.sum(0)": lambda m, x: x.sum(0),
    "x.softmax(-1)": lambda m, x: x.softmax(-1),
    "F.layer_norm": lambda m, x: m.nn.functional.layer_norm(x, (64,)),
    "x @ w": lambda m, x: x @ x[:1].t(),
    "torch.cat": lambda m, x: m.cat([x, x]),
}


def lower_quartile(times: list[int]) -> float:
    """Return the time below which a quarter of the single times lies, in microseconds."""
    return sorted(times)[len(times) // 4] / 1e3


def single(call: Callable[[Any, Any], Any], m: Any, x: Any) -> int:
    """Return the nanoseconds of one call."""
    start = time.perf_counter_ns()
    call(m, x)
    return time.perf_counter_ns() - start


def measure(m: Any, call: Callable[[Any, Any], Any], device: str) -> tuple[float, float]:
    """Return the time of a call with one shape, and with ever new ones."""
    tensors = [m.ones(17 + i, 64, device=device) for i in range(SHAPES)]
    for x in tensors[:2]:
        call(m, x)
    again = [single(call, m, tensors[0]) for _ in range(SHAPES)]
    new = [single(call, m, x) for x in tensors[2:]]
    if device == "cuda":
        m.cuda.synchronize()
    return lower_quartile(again), lower_quartile(new)


def main() -> None:
    """Print a line for each call, the worst ratio of new shapes first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    libraries = ["flambeau"] if options.alone else ["flambeau", "torch"]
    rows = []
    for name, call in CALLS.items():
        found = [
            time for m in libraries for time in measure(importlib.import_module(m), call, options.device)
        ]
        rows.append((found[1] / found[-1], name, found))
    heads = [f"{m}, {kind}" for m in libraries for kind in ("one shape", "new shapes")]
    print(f"{'call':16}" + "".join(f"{head:>22}" for head in heads) + f"{'new, ratio':>12}")
    for ratio, name, found in sorted(rows, reverse=True):
        print(f"{name:16}" + "".join(f"{each:22.1f}" for each in found) + f"{ratio:12.2f}")


if __name__ == "__main__":
    main()
