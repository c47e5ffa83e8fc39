"""Device and host time of kernels that once missed their mark, beside PyTorch on the same GPU.

    python tests/gpu/kernels_speed.py [part of a name ...]

One process, events around rows of calls, rounds of the two libraries in turn, medians. Both draw the same numbers, so
results are compared, too: a `!` marks those that differ. Under a minute on an H100. TF32 is off. `SMALLER=16` divides
batches, for a dry run on a virtual GPU.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402

import flambeau  # noqa: E402

Call = Callable[[], Any]
ROUNDS, ROUND_US, LIMIT_S = 5, 3000.0, 55.0
PART = int(os.environ.get("SMALLER", "1"))


def device_calls(m: Any) -> dict[str, Call]:
    """Large calls, of which the device's time is measured."""
    f = m.nn.functional
    m.manual_seed(0)
    rows = m.randn(16384 // PART, 4096, device="cuda")
    halves, numbers = rows.to(m.bfloat16), rows.view(-1)[: (1 << 24) // PART]
    positive, rare = numbers > 0, numbers > 2.5
    images = m.randn(64 // PART, 64, 56, 56, device="cuda")
    stem = m.randn(64 // PART, 64, 112, 112, device="cuda")
    weight, bias = m.ones(64, device="cuda"), m.zeros(64, device="cuda")
    table, words = (
        m.randn(32000 // PART, 768, device="cuda"),
        m.randint(0, 32000 // PART, (8192 // PART,), device="cuda"),
    )
    heads = [m.randn(8, 16, 1024 // PART, 64, device="cuda").to(m.bfloat16) for _ in range(3)]

    def backward(make: Callable[..., Any], *sources: Any) -> Call:
        leaves = [source.clone().requires_grad_() for source in sources]
        out = make(*leaves)
        grad = m.ones_like(out)
        return lambda: m.autograd.grad(out, leaves, grad, retain_graph=True)

    def attention(causal: bool) -> Call:
        return lambda: f.scaled_dot_product_attention(*heads, is_causal=causal)

    return {
        "topk 8 of rows of 4096": lambda: m.topk(rows, 8, 1),
        "topk 50 of rows of 4096": lambda: m.topk(rows, 50, 1),
        "topk 8 of rows, bfloat16": lambda: m.topk(halves, 8, 1),
        "topk 10 of 16 Mi": lambda: m.topk(numbers, 10),
        "masked_select of 16 Mi, half": lambda: m.masked_select(numbers, positive),
        "masked_select of 16 Mi, few": lambda: m.masked_select(numbers, rare),
        "nonzero of 16 Mi": lambda: m.nonzero(positive),
        "x[mask] of 16 Mi": lambda: numbers[positive],
        "unique of 16 Mi, 1000": lambda: m.unique((numbers * 100).to(m.int32)),
        "var of rows": lambda: rows.var(1),
        "var of columns": lambda: rows.var(0),
        "var of all": lambda: rows.var(),
        "std_mean of rows, bfloat16": lambda: m.std_mean(halves, 1),
        "max_pool2d 2": lambda: f.max_pool2d(images, 2),
        "max_pool2d 3, stride 2, padding 1": lambda: f.max_pool2d(stem, 3, 2, 1),
        "max_pool2d 2, backward": backward(lambda x: f.max_pool2d(x, 2), images),
        "avg_pool2d 2": lambda: f.avg_pool2d(images, 2),
        "batch_norm": lambda: f.batch_norm(images, None, None, weight, bias, True),
        "batch_norm, backward": backward(
            lambda x, w, b: f.batch_norm(x, None, None, w, b, True), images, weight, bias
        ),
        "embedding, backward": backward(lambda t: f.embedding(words, t), table),
        "layer_norm": lambda: f.layer_norm(rows, (4096,)),
        "attention 8x16x1024x64 bf16": attention(False),
        "attention, causal": attention(True),
    }


def host_calls(m: Any) -> dict[str, Call]:
    """Small calls, of which the host's time is measured."""
    a, b, c = (m.rand(1024, device="cuda") for _ in range(3))
    square, labels = m.rand(32, 32, device="cuda"), m.arange(32, device="cuda")
    event, stream = m.cuda.Event(), m.cuda.Stream()
    event.record()
    layers = m.nn.Sequential(m.nn.Linear(64, 64), m.nn.ReLU(), m.nn.Linear(64, 10)).cuda()
    x, y = m.rand(32, 64, device="cuda"), m.randint(0, 10, (32,), device="cuda")
    optimizer = m.optim.SGD(layers.parameters(), 0.1)

    def train() -> None:
        optimizer.zero_grad()
        m.nn.functional.cross_entropy(layers(x), y).backward()
        optimizer.step()

    return {
        "a + b": lambda: a + b,
        "a.add_(b)": lambda: a.add_(b),
        "a.mul_(1.0)": lambda: a.mul_(1.0),
        "add(a, b, out=c)": lambda: m.add(a, b, out=c),
        "zeros(1024)": lambda: m.zeros(1024, device="cuda"),
        "randn(1024)": lambda: m.randn(1024, device="cuda"),
        "m[labels]": lambda: square[labels],
        "m[3:9, 1]": lambda: square[3:9, 1],
        "m @ m": lambda: square @ square,
        "stream.wait_event": lambda: stream.wait_event(event),
        "a step of an MLP, SGD": train,
    }


def device_us(m: Any, run: Call, calls: int) -> float:
    start, end = m.cuda.Event(enable_timing=True), m.cuda.Event(enable_timing=True)
    m.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


def host_us(m: Any, run: Call, calls: int) -> float:
    m.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    spent = time.perf_counter() - start
    m.cuda.synchronize()
    return spent * 1e6 / calls


def same(results: list[Any]) -> bool:
    """Whether a call gave all libraries one result: of several tensors the first, of many elements the first."""
    first = [x[0] if isinstance(x, (tuple, list)) else x for x in results]
    few = [x.detach().reshape(-1)[:65536].double().cpu().numpy() for x in first]
    return all(x.shape == y.shape for x, y in zip(first[1:], first, strict=False)) and all(
        np.allclose(x, few[0], 2e-2, 2e-2) for x in few[1:]
    )


def table(title: str, both: list[Any], runs: list[dict[str, Call]], measure: Any, end: float) -> None:
    print(f"\n{title:36}{'Flambeau':>10}{'PyTorch':>10}{'ratio':>8}")
    for name in runs[0]:
        if (sys.argv[1:] and not any(part in name for part in sys.argv[1:])) or time.monotonic() > end:
            continue
        times: list[list[float]] = [[] for _ in both]
        try:
            for _ in range(3):
                results = [each[name]() for each in runs]
        except Exception as error:  # the rest of the table is wanted all the same
            print(f"{name:36}{type(error).__name__}: {str(error)[:100]}")
            continue
        mark = " " if measure is host_us or same(results) else "!"
        calls = 200
        if measure is device_us:
            calls = max(2, min(200, int(ROUND_US / max(device_us(both[0], runs[0][name], 2), 1.0))))
        for _ in range(ROUNDS):
            for m, each, spent in zip(both, runs, times, strict=True):
                spent.append(measure(m, each[name], calls))
        medians = [statistics.median(spent) for spent in times]
        text = "".join([f"{us:10.1f}" for us in medians])
        print(
            f"{name:35}{mark}{text}" + (f"{medians[0] / medians[1]:8.2f}" if len(medians) > 1 else ""),
            flush=True,
        )


def libraries() -> list[Any]:
    """Flambeau, and PyTorch where it can use a GPU: without TF32, as ours."""
    try:
        torch = import_module("torch")
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("no comparison: PyTorch is not here, or without CUDA")
        return [flambeau]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return [flambeau, torch]


def main() -> None:
    end = time.monotonic() + LIMIT_S
    both = libraries()
    print(flambeau.cuda.get_device_name())
    table("device, us", both, [device_calls(m) for m in both], device_us, end)
    table("host, us", both, [host_calls(m) for m in both], host_us, end)


if __name__ == "__main__":
    main()
