"""Products, random numbers and scans beside PyTorch: `python tests/gpu/products_speed.py`, on a machine with a GPU.

Device time of large ones by events, host time of small ones by the clock; both libraries with the same TF32 setting.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from indexing_speed import device_us

import flambeau

N = 64 << 20


def large(torch: Any) -> dict[str, Callable[[], Any]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    made = {
        kind: torch.randn(4096, 4096, device="cuda").to(getattr(torch, kind))
        for kind in ("float32", "float64")
    }
    wide = torch.randn(8192, 8192, device="cuda").to(torch.bfloat16)
    batch = torch.randn(256, 512, 256, device="cuda").to(torch.bfloat16)
    bias = torch.randn(8192, device="cuda").to(torch.bfloat16)
    x = torch.randn(N, device="cuda")
    square = x.view(8192, 8192)
    whole = x.to(torch.int32)
    y = torch.empty(N, device="cuda")

    def tf32() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        result = made["float32"] @ made["float32"]
        torch.backends.cuda.matmul.allow_tf32 = False
        return result

    return {
        "mm float32 4096": lambda: made["float32"] @ made["float32"],
        "mm float32 4096 tf32": tf32,
        "mm float64 4096": lambda: made["float64"] @ made["float64"],
        "mm bfloat16 8192": lambda: wide @ wide,
        "mm bfloat16 8192 transposed": lambda: wide.t() @ wide,
        "addmm bfloat16 8192, a row": lambda: torch.addmm(bias, wide, wide),
        "bmm bfloat16 256 x 512 x 256": lambda: torch.bmm(batch, batch.transpose(1, 2)),
        "mv float32 8192": lambda: square @ x[:8192],
        "copy 64 Mi": lambda: y.copy_(x),
        "rand 64 Mi": lambda: y.uniform_(),
        "randn 64 Mi": lambda: y.normal_(),
        "bernoulli 64 Mi": lambda: y.bernoulli_(0.3),
        "cumsum 64 Mi": lambda: torch.cumsum(x, 0),
        "cumsum rows 8192": lambda: torch.cumsum(square, 1),
        "cumsum columns 8192": lambda: torch.cumsum(square, 0),
        "cumsum rows 64": lambda: torch.cumsum(x.view(-1, 64), 1),
        "cummax rows 8192": lambda: torch.cummax(square, 1),
        "cumsum int32 64 Mi": lambda: torch.cumsum(whole, 0),
        "histc 64 Mi": lambda: torch.histc(x, 100, -3, 3),
    }


def small(torch: Any) -> dict[str, Callable[[], Any]]:
    a = torch.randn(64, 64, device="cuda")
    bias, batch, y = a[0].contiguous(), a.view(4, 32, 32), torch.empty(1024, device="cuda")
    return {
        "mm 64 x 64": lambda: torch.mm(a, a),
        "addmm 64 x 64": lambda: torch.addmm(bias, a, a),
        "bmm 4 x 32 x 32": lambda: torch.bmm(batch, batch),
        "uniform_ 1024": lambda: y.uniform_(),
        "cumsum 1024": lambda: torch.cumsum(y, 0),
    }


def host_us(torch: Any, call: Callable[[], Any], count: int = 300, repeats: int = 9) -> float:
    """The median of means of queues of calls, waited for in between."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - start) / count * 1e6)
    torch.cuda.synchronize()
    return sorted(times)[repeats // 2]


def main() -> None:
    import torch

    for measured, calls in ((device_us, large), (host_us, small)):
        ours, theirs = calls(flambeau), calls(torch)
        print(f"{measured.__name__:32} Flambeau   PyTorch   ratio")
        for name, call in ours.items():
            try:
                mine, reference = measured(flambeau, call), measured(torch, theirs[name])
                print(f"{name:32} {mine:9.1f} {reference:9.1f} {mine / reference:7.2f}", flush=True)
            except Exception as error:
                print(f"{name:32} {error!r:.300}", flush=True)
        del ours, theirs


if __name__ == "__main__":
    sys.exit(main())
