"""Calls on an NVIDIA GPU that have taken much longer than PyTorch's, compared with PyTorch in one process.

python bench/gpu_worst.py [--only TEXT]

Times are of the device, in ms: medians of rounds of both libraries in turn, by events around a row of calls. A call
that fails is named and left out. The worst ratios are printed again at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from importlib import import_module
from typing import Any

os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")

Call = Callable[[], Any]
ROUNDS = 5
ROUND_MS = 20.0  # what a round lasts at least


def backward(m: Any, function: Callable[..., Any], *inputs: Any) -> Call:
    """Return a call that runs `function` and its gradient for all floating inputs."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    wanted = [x for x in leaves if x.requires_grad]
    grad = m.ones_like(function(*leaves).detach())
    return lambda: m.autograd.grad(function(*leaves), wanted, grad)


def attention_calls(m: Any) -> dict[str, Call]:
    attend = m.nn.functional.scaled_dot_product_attention
    calls: dict[str, Call] = {}
    for shape in ((8, 16, 2048, 64), (4, 16, 4096, 128), (2, 12, 512, 64), (8, 16, 1000, 96)):
        q, k, v = (m.randn(*shape, device="cuda", dtype=m.bfloat16) for _ in range(3))
        for causal in (True, False):
            name = f"attention {'x'.join(map(str, shape))} bf16{' causal' if causal else ''}"
            calls[name] = lambda q=q, k=k, v=v, c=causal: attend(q, k, v, is_causal=c)
            calls[f"{name}, with gradients"] = backward(
                m, lambda *x, c=causal: attend(*x, is_causal=c), q, k, v
            )
    q, k, v = (m.randn(4, 8, 1024, 64, device="cuda") for _ in range(3))
    calls["attention 4x8x1024x64 float32, with gradients"] = backward(m, attend, q, k, v)
    return calls


def reduction_calls(m: Any) -> dict[str, Call]:
    rows = m.randn(16384, 4096, device="cuda")
    small = m.randn(2048, 1024, device="cuda")
    integers = m.randint(0, 100, (2048, 1024), device="cuda")
    holes = m.where(small > 2, m.full_like(small, float("nan")), small)
    return {
        "median of rows 16384x4096": lambda: rows.median(1),
        "argmax of rows 16384x4096": lambda: rows.argmax(1),
        "argmin of rows 16384x4096": lambda: rows.argmin(1),
        "kthvalue of rows 2048x1024": lambda: small.kthvalue(100, 1),
        "mode of rows 2048x1024": lambda: integers.mode(1),
        "nanmedian 2 Mi": lambda: holes.nanmedian(),
        "nanmedian of rows": lambda: holes.nanmedian(1),
        "quantile of rows": lambda: small.quantile(0.3, 1),
        "unique 2 Mi": lambda: integers.unique(),
    }


def cumulative_calls(m: Any) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for length in (1 << 10, 1 << 16, 1 << 20):
        for kind in (m.float16, m.float32):
            x = m.rand(length, 4, device="cuda").to(kind).t()  # strided along the dimension
            calls[f"cumprod of {length} {kind}, with gradients"] = backward(m, lambda y: y.cumprod(1), x)
        calls[f"logcumsumexp of {length}, with gradients"] = backward(m, lambda y: y.logcumsumexp(1), x)
        calls[f"cummax of {length}, with gradients"] = backward(m, lambda y: y.cummax(1)[0], x)
    return calls


def other_calls(m: Any) -> dict[str, Call]:
    f = m.nn.functional
    x, y = m.randn(4096, 1000, device="cuda"), m.randn(4096, 1000, device="cuda")
    labels = m.randint(0, 1000, (4096,), device="cuda")
    square = m.randn(2048, 2048, device="cuda")
    tall = m.randn(512, 64, device="cuda")
    signal, filters = m.randn(32, 64, 4096, device="cuda"), m.randn(64, 64, 5, device="cuda")
    order = m.randint(0, 2048, (2048,), device="cuda")
    spectrum = m.complex(m.randn(4096, 4096, device="cuda"), m.randn(4096, 4096, device="cuda"))
    pageable = m.empty(256 << 20, dtype=m.uint8)
    return {
        "one_hot 4096 of 1000": lambda: f.one_hot(labels, 1000),
        "lstsq 512x64": lambda: m.linalg.lstsq(tall, tall[:, :4]),
        "multi_margin_loss, with gradients": backward(m, lambda a: f.multi_margin_loss(a, labels), x),
        "mish, with gradients": backward(m, f.mish, x),
        "smooth_l1_loss, with gradients": backward(m, f.smooth_l1_loss, x, y),
        "huber_loss, with gradients": backward(m, f.huber_loss, x, y),
        "flip of a transposed matrix": lambda: square.t().flip(0),
        "kron 64x64": lambda: m.kron(square[:64, :64], square[:64, :64]),
        "conv1d 32x64x4096 k5": lambda: f.conv1d(signal, filters),
        "index_add into a transposed matrix": lambda: square.t().index_add(0, order, square),
        "fft of rows 4096x4096": lambda: m.fft.fft(spectrum),
        "pageable copy 256 MiB": lambda: pageable.to("cuda"),
    }


def recurrent_calls(m: Any) -> dict[str, Call]:
    net = m.nn.LSTM(128, 128, 2).cuda()
    x = m.randn(64, 32, 128, device="cuda")
    weights = list(net.parameters())
    return {"LSTM 2x128, 64 steps of 32, with gradients": lambda: m.autograd.grad(net(x)[0].sum(), weights)}


FAMILIES = (attention_calls, reduction_calls, cumulative_calls, other_calls, recurrent_calls)


def milliseconds(m: Any, call: Call, count: int) -> float:
    """Return the device's time for one call, of `count` in a row."""
    start, end = (m.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / count


def compare(name: str, ours: tuple[Any, Call], theirs: tuple[Any, Call]) -> tuple[str, float, float] | None:
    try:
        counts = []
        for m, call in (ours, theirs):
            milliseconds(m, call, 1)
            counts.append(max(1, min(50, int(ROUND_MS / max(milliseconds(m, call, 1), 1e-3)))))
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for side, (m, call) in enumerate((ours, theirs)):
                times[side].append(milliseconds(m, call, counts[side]))
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None
    return name, statistics.median(times[0]), statistics.median(times[1])


def text_of(name: str, ours: float, theirs: float) -> str:
    return f"{ours / theirs:9.2f}  {ours:10.3f} {theirs:10.3f} ms  {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only calls whose name contains this text")
    only = parser.parse_args().only
    libraries = [import_module("flambeau"), import_module("torch")]
    rows = []
    for family in FAMILIES:
        for m in libraries:
            m.manual_seed(0)
        calls = [family(m) for m in libraries]
        for name in [name for name in calls[0] if only in name]:
            row = compare(name, *[(m, c[name]) for m, c in zip(libraries, calls, strict=True)])
            if row is not None:
                print(text_of(*row), flush=True)
                rows.append(row)
        del calls
        for m in libraries:
            m.cuda.empty_cache()
    print("-- the worst first")
    for row in sorted(rows, key=lambda row: -row[1] / row[2])[:20]:
        print(text_of(*row))


if __name__ == "__main__":
    main()
