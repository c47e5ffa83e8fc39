"""Host time of each layer of a repeated `a + b` on 1,024 floats, with a launch that does nothing.

Prints microseconds (best of many blocks) and the ratio to `numpy.add` on arrays of the same size in the same run.
Nothing may be added to the warm path without looking at this table. `python bench/overhead.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import flambeau as torch
from flambeau.ops.op import table
from flambeau.runtime import current, system
from flambeau.tensor import call
from flambeau.tensor.storage import Storage
from flambeau.tensor.tensor import make

BLOCK, BLOCKS = 2_000, 40


def microseconds(run: Callable[[], Any]) -> float:
    """Return the mean of the fastest block: the cost of the code without disturbances."""
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(BLOCK):
            run()
        best = min(best, time.perf_counter() - start)
    return best / BLOCK * 1e6


def null_launch(ptrs: Any, scalars: Any, stream: int) -> None:
    pass


def main() -> None:
    x = np.ones(1024, np.float32)
    y, out = x.copy(), x.copy()
    yardstick = microseconds(lambda: np.add(x, y))
    rows: list[tuple[str, float]] = [
        ("an empty call", microseconds(lambda: None)),
        ("numpy.add(x, y)", yardstick),
        ("numpy.add(x, y, out=z)", microseconds(lambda: np.add(x, y, out))),
    ]
    with torch.virtual(devices=1):
        a, b = torch.ones(1024, device="cuda"), torch.ones(1024, device="cuda")
        c = a + b
        a.add_(b), torch.add(a, b, out=c), a + 1.5, a.sum()  # plans, whose launch becomes a null launch below
        add = table["add"]
        key = (add, (), a.meta, b.meta)
        context = system.context_of(a.device)
        stream = current.local.streams[0]
        allocator, meta = context.allocator, c.meta

        def allocate() -> None:
            allocator.free(allocator.allocate(4096, stream))

        for plan in call.plans.values():
            plan.launch = null_launch
        side = torch.cuda.Stream()

        def guard() -> None:
            with torch.cuda.stream(side):
                pass

        def ranged() -> None:
            with torch.cuda.nvtx.range("x"):
                pass

        rows += [
            ("look up the plan", microseconds(lambda: call.plans.get((add, (), a.meta, b.meta)))),
            ("read the current stream", microseconds(lambda: current.local.streams[0])),
            ("allocate and free a block", microseconds(allocate)),
            (
                "make a storage and a tensor",
                microseconds(lambda: make(meta, Storage(0, 0, context, None), 0)),
            ),
            ("call.binary(add, a, b), null launch", microseconds(lambda: call.binary(add, a, b))),
            ("a + b, null launch", microseconds(lambda: a + b)),
            ("a + 1.5, null launch", microseconds(lambda: a + 1.5)),
            ("a.sum(), null launch", microseconds(lambda: a.sum())),
            ("a.add_(b), null launch", microseconds(lambda: a.add_(b))),
            ("torch.add(a, b, out=c), null launch", microseconds(lambda: torch.add(a, b, out=c))),
            ("torch.empty(1024, device='cuda')", microseconds(lambda: torch.empty(1024, device="cuda"))),
            ("with torch.cuda.stream(s): pass", microseconds(guard)),
            ("torch.cuda.current_stream()", microseconds(torch.cuda.current_stream)),
            ("torch.cuda.memory_allocated()", microseconds(torch.cuda.memory_allocated)),
            ("with torch.cuda.nvtx.range('x'): pass", microseconds(ranged)),
            ("torch.cuda.nvtx.mark('x')", microseconds(lambda: torch.cuda.nvtx.mark("x"))),
        ]
        assert call.plans[key] is not None
    print(f"{'':40}{'us':>8}{'/ numpy.add':>13}")
    for name, cost in rows:
        print(f"{name:40}{cost:8.2f}{cost / yardstick:13.2f}")


if __name__ == "__main__":
    main()
