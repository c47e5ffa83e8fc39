"""Host time of everyday calls over CUDA libraries that do nothing, without a GPU.

`python bench/calls.py [name ...]`.

CUDA and its libraries do nothing (bench/null.py): so that all Python does for a call is there and nothing else. Prints
the best of many short blocks, and how many times `numpy.add` fits: machines differ, and so does one under load. With
names, each is profiled as well.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from typing import Any

import null

CALLS, BLOCKS = 100, 300


def microseconds(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def main(names: list[str]) -> None:
    null.libraries()
    import gpu_operators
    import numpy

    import flambeau

    tensors = gpu_operators.Tensors.__new__(gpu_operators.Tensors)
    tensors._small(flambeau)
    x = numpy.ones(1024, numpy.float32)
    base = microseconds(lambda: x + x)
    print(f"{'numpy.add of 1,024':32}{base:8.2f}")
    for name, define in gpu_operators.SMALL.items():
        if names and name not in names:
            continue

        def call(define: Any = define) -> Any:
            return define(flambeau, tensors)

        call()
        took = microseconds(call)
        print(f"{name:32}{took:8.2f}{took / base:8.1f}", flush=True)
        if names:
            profile = cProfile.Profile()
            with profile:
                for _ in range(2000):  # results are dropped at once, so that their memory comes back
                    call()
            pstats.Stats(profile).sort_stats("tottime").print_stats(16)


if __name__ == "__main__":
    main(sys.argv[1:])
