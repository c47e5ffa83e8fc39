"""Compiled chains on a GPU: equal bits in random programs, then times of eager and compiled functions.

    python tests/gpu/fusion_speed.py            # 60 s on an H100; prints one line for each function, then JSON
    python tests/gpu/fusion_speed.py replays    # only random functions that CUDA graphs replay

It exits with status 1 if a compiled result differs. With FLAMBEAU_LOGS=fusion it prints the sources.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))
os.environ.setdefault(
    "FLAMBEAU_FUSE_FROM", "0"
)  # so that random programs, whose tensors are small, are fused

from random_programs import Walk
from step_programs import Steps

import flambeau as torch

PROGRAMS = 60
SIZE = 64 << 20


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def chain_of_eight(x: Any) -> Any:
    return (((x * 2 + 1).relu() - 0.5).abs() * x + 3).sigmoid() * 0.1


def normalization(x: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def swiglu(x: Any) -> Any:
    return x * torch.sigmoid(x) * (x + 1)


FUNCTIONS = {
    "gelu": (gelu, (SIZE,), torch.float32),
    "chain of eight": (chain_of_eight, (SIZE,), torch.float32),
    "normalization by hand": (normalization, (16384, 4096), torch.float32),
    "gelu, bfloat16": (gelu, (SIZE,), torch.bfloat16),
    "swiglu, bfloat16": (swiglu, (8192, 11008), torch.bfloat16),
    "gelu, strided": (lambda x: gelu(x[:, ::2]), (8192, 8192), torch.float32),
}


def await_compilations() -> None:
    """Wait for the threads that compile fused kernels."""
    for thread in threading.enumerate():
        if thread.name == "flambeau-compilation":
            thread.join()


def milliseconds(function: Callable[[], Any], count: int = 20) -> float:
    """Return the median time of a function on the GPU."""
    times = []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[count // 2]


def measured(function: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """Return the times of a function, and whether its compiled results are those of eager code."""
    x = torch.randn(shape, device="cuda").to(dtype)
    compiled = torch.compile(function)
    want = function(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    results = [compiled(x)]
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    await_compilations()
    ready = time.perf_counter() - start
    results.append(compiled(x))
    words = torch.int16 if dtype is torch.bfloat16 else torch.int32
    same = all(torch.equal(r.contiguous().view(words), want.contiguous().view(words)) for r in results)
    copy = torch.empty_like(x)
    return {
        "same": same, "eager_ms": milliseconds(lambda: function(x)), "compiled_ms": milliseconds(lambda: compiled(x)),
        "pass_ms": milliseconds(lambda: copy.copy_(x)), "first_s": first, "ready_s": ready,
    }  # fmt: skip


def differing_programs(count: int) -> list[str]:
    """Return the seeds of random programs whose compiled run observes something else than the eager run."""
    wrong = []
    for seed in [f"gpu {k}" for k in range(count)]:
        eager = Walk(seed, lambda function: function).run(4, 8)
        for _ in range(2):  # by separate kernels while the fused ones are compiled, then by those
            if Walk(seed, torch.compile).run(4, 8) != eager:
                wrong.append(seed)
            await_compilations()
    return wrong


def differing_steps(count: int) -> list[str]:
    """Return the seeds of random functions of which replays show something else than eager calls."""
    wrong = []
    for seed in [f"gpu {k}" for k in range(count)]:
        eager = Steps(seed, lambda function: function).run(12)
        if Steps(seed, lambda function: torch.compile(function, mode="reduce-overhead")).run(12) != eager:
            wrong.append(seed)
        torch.compiler.reset()
    return wrong


def main() -> int:
    warnings.simplefilter("ignore")
    steps = differing_steps(PROGRAMS)
    print(f"{PROGRAMS} random functions, different when replayed: {steps}", flush=True)
    if sys.argv[1:] == ["replays"]:
        return int(bool(steps))
    rows = {name: measured(*what) for name, what in FUNCTIONS.items()}
    for name, row in rows.items():
        print(
            f"{name:24} eager {row['eager_ms']:.3f} ms, compiled {row['compiled_ms']:.3f}, one pass {row['pass_ms']:.3f}; "
            f"first {row['first_s']:.3f} s, fused after {row['ready_s']:.2f} s, same bits: {row['same']}",
            flush=True,
        )
    wrong = differing_programs(PROGRAMS)
    print(f"{PROGRAMS} random programs, different when compiled: {wrong}")
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(0),
                "functions": rows,
                "different": wrong,
                "replayed": steps,
            }
        )
    )
    return 1 if wrong or steps or not all(row["same"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
