"""The host's part of everyday calls, without a GPU: `python bench/calls.py [name ...]`.

The CUDA driver runs over a libcuda that does nothing (tests/gpu/null_cuda.c, built here by gcc), its kernels are
never compiled: so that all Python does for a call is there and nothing else. Prints the best of many short blocks, and
how many times `numpy.add` fits: machines differ, and so does one under load. With names, each is profiled as well.
Products, which another library does, are left out.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CALLS, BLOCKS = 100, 300
SKIPPED = ("m @ m", "F.linear")


def microseconds(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def restart() -> None:
    """Run this again where the null library is found first."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libcuda.so.1")
        source = ROOT / "tests" / "gpu" / "null_cuda.c"
        flags = ["-shared", "-fPIC", "-w", "-O2", "-ldl", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["gcc", "-o", library, source, *flags], check=True)
        env = {**os.environ, "LD_LIBRARY_PATH": folder, "FLAMBEAU_DRIVER": "cuda", "NULL_CUDA": folder}
        env["FLAMBEAU_KERNEL_CACHE"] = folder
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=env).returncode)


def main(names: list[str]) -> None:
    import gpu_operators
    import numpy

    import flambeau
    from flambeau.driver.cuda.compiler import Compiler

    Compiler.cubin = lambda self, source: b"x"  # type: ignore[method-assign,assignment]
    tensors = gpu_operators.Tensors.__new__(gpu_operators.Tensors)
    tensors._small(flambeau)
    x = numpy.ones(1024, numpy.float32)
    base = microseconds(lambda: x + x)
    print(f"{'numpy.add of 1,024':32}{base:8.2f}")
    for name, define in gpu_operators.SMALL.items():
        if name.startswith(SKIPPED) or (names and name not in names):
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
    if "NULL_CUDA" not in os.environ:
        restart()
    main(sys.argv[1:])
