"""Host time to record a chain of additions and to run its backward, per node, on virtual and CPU tensors.

With `--torch`, PyTorch's CPU too (its nodes compute; ours on a virtual GPU are launched by a null launch, so that
only the host's part is seen). Prints microseconds per node, best of many chains. `python bench/autograd.py [--torch]`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import flambeau
from flambeau.tensor import call

LENGTH, ROUNDS = 2_000, 15
CHAINS: dict[str, Callable[[Any], Any]] = {
    "y + 1": lambda y: y + 1,
    "y * 2": lambda y: y * 2,
    "y.tanh()": lambda y: y.tanh(),
    "y.view(4)": lambda y: y.view(4),
}


def null_launch(*arguments: Any) -> None:
    pass


def measure(x: Any, step: Callable[[Any], Any]) -> tuple[float, float, float]:
    """Return microseconds per node: without recording, with recording, and of the backward pass."""
    best = [float("inf")] * 3
    for _ in range(ROUNDS):
        times = [time.perf_counter()]
        y = x.detach()
        for _ in range(LENGTH):
            y = step(y)
        times.append(time.perf_counter())
        y = x
        for _ in range(LENGTH):
            y = step(y)
        times.append(time.perf_counter())
        seed = y.detach()
        times.append(time.perf_counter())
        y.backward(seed)
        times.append(time.perf_counter())
        x.grad = None
        took = [times[1] - times[0], times[2] - times[1], times[4] - times[3]]
        best = [min(a, b) for a, b in zip(best, took, strict=True)]
    return best[0] / LENGTH * 1e6, best[1] / LENGTH * 1e6, best[2] / LENGTH * 1e6


def table(title: str, x: Any, silent: bool = False) -> None:
    print(f"{title:32s}{'no tape':>10s}{'record':>10s}{'walk':>10s}   us per node")
    for name, step in CHAINS.items():
        step(x).backward(x.detach())  # plans and classes of nodes
        x.grad = None
        if silent:
            for plan in [*call.plans.values()]:
                plan.launch = null_launch
        plain, record, walk = measure(x, step)
        print(f"  {name:30s}{plain:10.2f}{record:10.2f}{walk:10.2f}")


def main() -> None:
    with flambeau.virtual(devices=1):
        table("null launch", flambeau.ones(4, device="cuda", requires_grad=True), silent=True)
    table("Flambeau, CPU", flambeau.ones(4, requires_grad=True))
    if "--torch" in sys.argv:
        import torch

        torch.set_num_threads(1)
        table("PyTorch, CPU", torch.ones(4, requires_grad=True))


if __name__ == "__main__":
    main()
