"""Operators on an NVIDIA GPU compared with PyTorch's, in one process: `python bench/operators.py --driver cuda`.

Small calls: microseconds of the host for one call, the queue drained between rounds. Large calls: microseconds of the
device, by events around a row of calls. Rounds of both libraries alternate; medians are printed. Both have the
same TF32 setting: off, but for the calls that say TF32. A call that fails is said and left out.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")

import flambeau

Call = Callable[[Any, "Tensors"], Any]
Times = dict[str, float]

ROUNDS = 9
HOST_CALLS = 100  # of one round
ROUND_US = 2000.0  # what a round of large calls lasts at least, on the device
MAX_CALLS = 50

SMALL: dict[str, Call] = {
    "a + b": lambda m, t: t.a + t.b,
    "a + 2": lambda m, t: t.a + 2,
    "a * row (broadcasts)": lambda m, t: t.m * t.row,
    "a.add_(b)": lambda m, t: t.a.add_(t.b),
    "add(a, b, out=c)": lambda m, t: m.add(t.a, t.b, out=t.c),
    "a / b": lambda m, t: t.a / t.b,
    "a ** 2": lambda m, t: t.a**2,
    "a.exp()": lambda m, t: t.a.exp(),
    "a.tanh()": lambda m, t: t.a.tanh(),
    "a.clamp(0, 1)": lambda m, t: t.a.clamp(0, 1),
    "a > 0": lambda m, t: t.a > 0,
    "where(mask, a, b)": lambda m, t: m.where(t.mask, t.a, t.b),
    "h + h (bfloat16)": lambda m, t: t.h + t.h,
    "F.relu(a)": lambda m, t: m.nn.functional.relu(t.a),
    "F.gelu(a)": lambda m, t: m.nn.functional.gelu(t.a),
    "a.sum()": lambda m, t: t.a.sum(),
    "m.mean(1)": lambda m, t: t.m.mean(1),
    "m.max(1)": lambda m, t: t.m.max(1),
    "m.argmax(1)": lambda m, t: t.m.argmax(1),
    "F.softmax(m, 1)": lambda m, t: m.nn.functional.softmax(t.m, 1),
    "F.layer_norm(m)": lambda m, t: m.nn.functional.layer_norm(t.m, (32,), t.row, t.row),
    "F.cross_entropy(m, labels)": lambda m, t: m.nn.functional.cross_entropy(t.m, t.labels),
    "m @ m": lambda m, t: t.m @ t.m,
    "F.linear(m, m, row)": lambda m, t: m.nn.functional.linear(t.m, t.m, t.row),
    "F.conv2d (1, 8, 16, 16) k3": lambda m, t: m.nn.functional.conv2d(t.image, t.filters),
    "F.embedding": lambda m, t: m.nn.functional.embedding(t.labels, t.m),
    "m[labels]": lambda m, t: t.m[t.labels],
    "m[3:9, 1]": lambda m, t: t.m[3:9, 1],
    "m.t().contiguous()": lambda m, t: t.m.t().contiguous(),
    "cat([a, b])": lambda m, t: m.cat([t.a, t.b]),
    "zeros(1024)": lambda m, t: m.zeros(1024, device="cuda"),
    "randn(1024)": lambda m, t: m.randn(1024, device="cuda"),
    "a.clone()": lambda m, t: t.a.clone(),
    "a.to(float64)": lambda m, t: t.a.to(m.float64),
}  # fmt: skip

LARGE: dict[str, Call] = {
    "conv2d 64x64x56x56 k3, TF32": lambda m, t: m.nn.functional.conv2d(t.images, t.kernels, padding=1),
    "conv2d 64x64x56x56 k3": lambda m, t: m.nn.functional.conv2d(t.images, t.kernels, padding=1),
    "fft2 4096x4096 complex64": lambda m, t: m.fft.fft2(t.spectrum),
    "fft 4096x4096 complex64": lambda m, t: m.fft.fft(t.spectrum),
    "softmax 16384x4096": lambda m, t: m.softmax(t.rows, 1),
    "sort 16 Mi": lambda m, t: m.sort(t.numbers),
    "gather 16 Mi": lambda m, t: m.gather(t.numbers, 0, t.places),
    "mm 4096, TF32": lambda m, t: t.square @ t.square,
    "mm 4096": lambda m, t: t.square @ t.square,
    "mm 4096 bfloat16": lambda m, t: t.half @ t.half,
    "bmm 64x512x512 bfloat16": lambda m, t: m.bmm(t.batch, t.batch),
    "attention 8x16x1024x64 bf16": lambda m, t: m.nn.functional.scaled_dot_product_attention(t.heads, t.heads, t.heads),
    "add 64 Mi": lambda m, t: m.add(t.rows, t.rows),
    "add 64 Mi bfloat16": lambda m, t: m.add(t.halves, t.halves),
    "exp 64 Mi": lambda m, t: t.rows.exp(),
    "gelu 64 Mi": lambda m, t: m.nn.functional.gelu(t.rows),
    "where 64 Mi": lambda m, t: m.where(t.chosen, t.rows, 0.0),
    "sum 64 Mi": lambda m, t: t.rows.sum(),
    "sum of rows": lambda m, t: t.rows.sum(1),
    "sum of columns": lambda m, t: t.rows.sum(0),
    "var of rows": lambda m, t: t.rows.var(1),
    "argmax of rows": lambda m, t: t.rows.argmax(1),
    "cumsum of rows": lambda m, t: t.rows.cumsum(1),
    "topk 8 of rows": lambda m, t: m.topk(t.rows, 8, 1),
    "sort of rows": lambda m, t: m.sort(t.rows, 1),
    "transpose": lambda m, t: t.rows.t().contiguous(),
    "layer_norm 16384x4096": lambda m, t: m.nn.functional.layer_norm(t.rows, t.rows.shape[1:], t.rows[0], t.rows[1]),
    "batch_norm 64x64x56x56": lambda m, t: m.nn.functional.batch_norm(t.images, None, None, training=True),
    "cross_entropy 16384x4096": lambda m, t: m.nn.functional.cross_entropy(t.rows, t.classes),
    "max_pool2d 64x64x56x56": lambda m, t: m.nn.functional.max_pool2d(t.images, 2),
    "interpolate bilinear x2": lambda m, t: m.nn.functional.interpolate(t.images, scale_factor=2, mode="bilinear"),
    "index_select 16384 rows": lambda m, t: t.rows.index_select(0, t.order),
    "scatter_add_ 16 Mi": lambda m, t: t.sums.scatter_add_(0, t.places, t.numbers),
    "masked_select 16 Mi": lambda m, t: m.masked_select(t.numbers, t.positive),
    "dropout 64 Mi": lambda m, t: m.nn.functional.dropout(t.rows),
    "randn 64 Mi": lambda m, t: m.randn(t.rows.shape, device="cuda"),
    "linalg.cholesky 2048": lambda m, t: m.linalg.cholesky(t.definite),
    "linalg.solve 2048": lambda m, t: m.linalg.solve(t.definite, t.definite),
}  # fmt: skip


class Tensors:
    """The operands of every call, of one library. `part`: by how much smaller the large ones are (for a dry run)."""

    def __init__(self, m: Any, part: int = 1) -> None:
        m.manual_seed(0)
        self._small(m)
        self._large(m, part)

    def _small(self, m: Any) -> None:
        made = {"device": "cuda"}
        self.a, self.b, self.c = m.rand(1024, **made), m.rand(1024, **made), m.zeros(1024, **made)
        self.mask, self.h = self.a > 0.5, self.a.to(m.bfloat16)
        self.m, self.row, self.labels = m.rand(32, 32, **made), m.rand(32, **made), m.arange(32, **made)
        self.image, self.filters = m.rand(1, 8, 16, 16, **made), m.rand(8, 8, 3, 3, **made)

    def _large(self, m: Any, part: int) -> None:
        made = {"device": "cuda"}
        side, count = 4096 // part, (1 << 24) // part**2
        self.rows = m.randn(4 * side, side, **made)
        self.halves, self.chosen = self.rows.to(m.bfloat16), self.rows > 0
        self.square = m.randn(side, side, **made)
        self.half, self.spectrum = self.square.to(m.bfloat16), m.complex(self.square, self.square)
        self.images, self.kernels = m.randn(64 // part, 64, 56, 56, **made), m.randn(64, 64, 3, 3, **made)
        self.batch = m.randn(64, 512 // part, 512 // part, **made).to(m.bfloat16)
        self.heads = m.randn(8, 16, 1024 // part, 64, **made).to(m.bfloat16)
        self.numbers, self.sums = m.randn(count, **made), m.zeros(count, **made)
        self.positive, self.places = self.numbers > 0, m.randint(count, (count,), **made)
        self.classes, self.order = m.randint(side, (4 * side,), **made), m.randperm(4 * side, **made)
        half = side // 2
        self.definite = self.square[:half, :half] / half**0.5 + 4 * m.eye(half, **made)
        self.definite = self.definite @ self.definite.t()


def host_us(run: Callable[[], Any], sync: Callable[[], None]) -> float:
    """Return the host's microseconds per call, without waiting for the device."""
    sync()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        run()
    spent = time.perf_counter() - start
    sync()
    return spent / HOST_CALLS * 1e6


def device_us(m: Any, run: Callable[[], Any], calls: int) -> float:
    """Return the device's microseconds per call, by events around `calls` of them."""
    start, end = m.cuda.Event(enable_timing=True), m.cuda.Event(enable_timing=True)
    m.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


class Bench:
    """Both libraries with their operands; measures one call of both at a time."""

    def __init__(self, part: int = 1) -> None:
        self.libraries: dict[str, Any] = {"flambeau": flambeau}
        self.tensors = {"flambeau": Tensors(flambeau, part)}
        try:
            torch = import_module("torch")
            self.tensors["torch"] = Tensors(torch, part)
            self.libraries["torch"] = torch
        except (ImportError, AssertionError, RuntimeError) as error:  # absent, or without CUDA
            print(f"no comparison with PyTorch: {error}")

    def ready(self, name: str, call: Call) -> dict[str, Callable[[], Any]]:
        """Return each library's call, checked and warmed up, with its TF32 setting."""
        found = {}
        for library, m in self.libraries.items():
            m.backends.cuda.matmul.allow_tf32 = m.backends.cudnn.allow_tf32 = "TF32" in name
            operands = self.tensors[library]

            def run(m: Any = m, operands: Tensors = operands) -> Any:
                return call(m, operands)

            try:
                for _ in range(3):
                    run()
                m.cuda.synchronize()
                found[library] = run
            except Exception as error:  # the rest of the table is wanted all the same
                print(f"  {name}: {library}: {type(error).__name__}: {str(error)[:120]}")
        return found

    def small(self, runs: dict[str, Callable[[], Any]]) -> Times:
        """Microseconds of the host."""
        return self._medians(runs, lambda m, run, _: host_us(run, m.cuda.synchronize), dict.fromkeys(runs, 0))

    def large(self, runs: dict[str, Callable[[], Any]]) -> Times:
        """Microseconds of the device."""
        once = {library: device_us(self.libraries[library], run, 1) for library, run in runs.items()}
        calls = {
            library: max(2, min(MAX_CALLS, int(ROUND_US / max(us, 1.0)))) for library, us in once.items()
        }
        return self._medians(runs, device_us, calls)

    def _medians(
        self, runs: dict[str, Callable[[], Any]], measure: Callable[..., float], calls: dict[str, int]
    ) -> Times:
        rounds: dict[str, list[float]] = {library: [] for library in runs}
        for _ in range(ROUNDS):
            for library, run in runs.items():
                rounds[library].append(measure(self.libraries[library], run, calls[library]))
        return {library: statistics.median(times) for library, times in rounds.items()}


def table(title: str, calls: Iterable[tuple[str, Times]]) -> None:
    """Print the rows and the median of their ratios."""
    print(f"\n{title:30}{'Flambeau':>10}{'PyTorch':>10}{'ratio':>8}")
    ratios = []
    for name, times in calls:
        ours, theirs = times.get("flambeau", float("nan")), times.get("torch", float("nan"))
        if ours == ours and theirs == theirs:
            ratios.append(ours / theirs)
        print(f"{name:30}{ours:>10.1f}{theirs:>10.1f}{ours / theirs:>8.2f}", flush=True)
    if ratios:
        print(f"{len(ratios)} calls; median ratio {statistics.median(ratios):.2f}; largest {max(ratios):.2f}")


def main(part: str = "", limit_s: float = 110.0, smaller: int = 1) -> None:
    """Print both tables. What is not begun within `limit_s` seconds is left out, and said."""
    warnings.simplefilter("ignore")
    end = time.monotonic() + limit_s
    bench = Bench(smaller)
    print(f"on {flambeau.cuda.get_device_name()}")

    def rows(
        calls: dict[str, Call], measure: Callable[[dict[str, Any]], Times]
    ) -> Iterable[tuple[str, Times]]:
        wanted = [name for name in calls if part in name]
        for name in wanted:
            if time.monotonic() > end:
                print(f"  not measured, for want of time: {name}")
                continue
            runs = bench.ready(name, calls[name])
            if runs:
                yield name, measure(runs)

    table("device, us", rows(LARGE, bench.large))
    table("host, us", rows(SMALL, bench.small))
