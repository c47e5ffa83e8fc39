"""Host time of a training step, alone and under DistributedDataParallel, without a GPU.

    python bench/steps.py                      # the steps of bench/distributed.py: mlp, resnet, gpt
    python bench/steps.py resnet --profile     # where the time goes, of both
    python bench/steps.py resnet --gpu         # on a real GPU: what its libraries take of the host's time is there, too

CUDA, cuDNN, cuBLASLt and NCCL are libraries that do nothing (bench/null.py): what is left is Flambeau's own time and
that of the bindings. The rank is one of two; the other one is never there, nor missed. (On a GPU it is alone.) Prints
the best of many steps in microseconds, and how many times `numpy.add` of 1,024 fits, since machines differ; and the
calls of Python functions in a step, which are the same on all, and under any load.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Callable
from typing import Any

import distributed
import null

WARM_UP, STEPS, PROFILED = 10, 60, 20


def best_us(call: Callable[[], Any], times: int, wait: Callable[[], None] = lambda: None) -> float:
    """Return the shortest processor time of a call in this thread; `wait` is called before each."""
    best = float("inf")
    for _ in range(times):
        wait()
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best * 1e6


def step_of(m: Any, name: str, ddp: bool) -> Callable[[], None]:
    """Return a training step of a program of bench/distributed.py."""
    if ddp:  # nothing can be read of what the others' parameters are
        m.nn.parallel.distributed._verify_params_across_processes = lambda *about: None
        return distributed.step_of(m, name, "cuda:0", 0)
    net, data, rows = distributed.PROGRAMS[name](m)
    return distributed.stepping(m, net.to("cuda"), *data("cuda"), rows)


def profiled(step: Callable[[], None]) -> pstats.Stats:
    profiler = cProfile.Profile()
    with profiler:
        for _ in range(PROFILED):
            step()
    return pstats.Stats(profiler).sort_stats("tottime")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", help=", ".join(distributed.PROGRAMS))
    parser.add_argument("--profile", action="store_true", help="print where the time goes, too")
    parser.add_argument("--rows", type=int, default=40, help="lines of the profile")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps that are timed")
    parser.add_argument("--gpu", action="store_true", help="on a real GPU")
    given = parser.parse_args()
    if not given.gpu:
        null.libraries()
    import numpy

    import flambeau as m

    m.backends.cuda.matmul.allow_tf32 = m.backends.cudnn.allow_tf32 = True
    world = 1 if given.gpu else 2
    m.distributed.init_process_group("nccl", store=m.distributed.HashStore(), rank=0, world_size=world)
    x = numpy.ones(1024, numpy.float32)
    base = best_us(lambda: [x + x for _ in range(100)], 300) / 100
    print(f"numpy.add of 1,024: {base:.2f} us")
    for name in given.programs or distributed.PROGRAMS:
        for kind in ("alone", "ddp"):
            step = step_of(m, name, kind == "ddp")
            for _ in range(WARM_UP):
                step()
            gc.collect()
            took = best_us(step, given.steps, m.cuda.synchronize)
            found = profiled(step)
            calls = found.total_calls / PROFILED
            print(f"{name:8}{kind:8}{took:10.0f} us{took / base:10.0f} adds{calls:10.0f} calls", flush=True)
            if given.profile:
                found.print_stats(given.rows)
            del step
            gc.collect()


if __name__ == "__main__":
    main()
