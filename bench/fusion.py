"""Times of compiled functions on a GPU: eight kernels, eager and by `torch.compile`, next to PyTorch.

    python bench/fusion.py                  # all eight; 2 minutes on an H100 with PyTorch, whose compiler takes 10 s
    python bench/fusion.py gelu rotary      # some of them
    python bench/fusion.py --smaller 64     # a 64th of the elements, for a machine that only checks that it runs

A time is the mean of several calls between two events, so the host's time counts only where it is longer than the
device's. One pass is the time of a copy of as many bytes as the function has to read and write. The first call and the
time until the fused kernels run are of a new process's kernel cache, unless FLAMBEAU_KERNEL_CACHE holds them already.
PyTorch is optional. The last line is JSON with all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

ROUNDS, CALLS = 7, 10
PASS_BYTES = 1 << 29  # of the copy that gives the speed of memory
Case = tuple[Callable[..., Any], list[Any], int]  # a function, its arguments, and the bytes that it must move


# -- the functions ----------------------------------------------------------------------------------------


def gelu(m: Any, scale: int) -> Case:
    def run(x: Any) -> Any:
        return 0.5 * x * (1 + m.tanh(0.7978845608 * (x + 0.044715 * x**3)))

    x = m.randn((64 << 20) // scale, device="cuda")
    return run, [x], 2 * x.nbytes


def chain_of_eight(m: Any, scale: int) -> Case:
    def run(x: Any) -> Any:
        return (((x * 2 + 1).relu() - 0.5).abs() * x + 3).sigmoid() * 0.1

    x = m.randn((64 << 20) // scale, device="cuda")
    return run, [x], 2 * x.nbytes


def normalization(m: Any, scale: int) -> Case:
    def run(x: Any) -> Any:
        centered = x - x.mean(-1, keepdim=True)
        return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    x = m.randn(16384 // scale, 4096, device="cuda")
    return run, [x], 2 * x.nbytes


def rms_norm(m: Any, scale: int) -> Case:
    def run(x: Any, weight: Any) -> Any:
        return x * m.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    x = m.randn(16384 // scale, 4096, device="cuda")
    return run, [x, m.randn(4096, device="cuda")], 2 * x.nbytes


def masked_softmax(m: Any, scale: int) -> Case:
    def run(scores: Any, mask: Any) -> Any:
        weights = m.softmax((scores * 0.125).masked_fill(mask, -1e9), -1)
        return m.nn.functional.dropout(weights, 0.1, training=True)

    scores = m.randn(64 // scale or 1, 1024, 1024, device="cuda")
    mask = m.ones(1024, 1024, device="cuda").triu(1).bool()
    return run, [scores, mask], 2 * scores.nbytes


def cross_entropy(m: Any, scale: int) -> Case:
    def run(logits: Any, labels: Any) -> Any:
        return m.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)

    rows = 4096 // scale
    logits = m.randn(rows, 32000, device="cuda")
    return run, [logits, m.randint(0, 32000, (rows,), device="cuda")], logits.nbytes


def swiglu(m: Any, scale: int) -> Case:
    def run(gate: Any, up: Any) -> Any:
        return m.nn.functional.silu(gate) * up

    gate, up = [m.randn(8192 // scale, 11008, device="cuda").bfloat16() for _ in range(2)]
    return run, [gate, up], 3 * gate.nbytes


def rotary(m: Any, scale: int) -> Case:
    def run(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x[..., :64], x[..., 64:]
        return x * cos + m.cat((-second, first), -1) * sin

    x = m.randn(8, 16, 4096 // scale, 128, device="cuda")
    cos, sin = [m.randn(4096 // scale, 128, device="cuda") for _ in range(2)]
    return run, [x, cos, sin], 2 * x.nbytes


KERNELS = {
    "gelu": gelu, "chain of eight": chain_of_eight, "normalization by hand": normalization, "rms norm": rms_norm,
    "masked softmax, dropout": masked_softmax, "cross entropy, smoothing": cross_entropy, "swiglu, bfloat16": swiglu,
    "rotary": rotary,
}  # fmt: skip


# -- measuring --------------------------------------------------------------------------------------------


def milliseconds(m: Any, run: Callable[[], Any], calls: int = CALLS) -> float:
    """Return the median time of a call, of several calls between two events each."""
    times = []
    run()
    for _ in range(ROUNDS):
        begin, end = (m.cuda.Event(enable_timing=True) for _ in range(2))
        m.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def await_compilations() -> None:
    """Wait for the threads that compile fused kernels."""
    for thread in threading.enumerate():
        if thread.name == "flambeau-compilation":
            thread.join()


def measure(m: Any, name: str, scale: int) -> dict[str, Any]:
    """Return the milliseconds of one kernel in one library, and the seconds of its first compiled call."""
    m.manual_seed(0)
    function, arguments, nbytes = KERNELS[name](m, scale)
    m.manual_seed(1)
    want = function(*arguments)
    m.cuda.synchronize()
    compiled = m.compile(function)
    start = time.perf_counter()
    compiled(*arguments)
    m.cuda.synchronize()
    first = time.perf_counter() - start
    await_compilations()
    compiled(*arguments)
    m.cuda.synchronize()
    ready = time.perf_counter() - start
    m.manual_seed(1)
    same = m.equal(compiled(*arguments), want)
    del want
    return {
        "eager_ms": milliseconds(m, lambda: function(*arguments)),
        "compiled_ms": milliseconds(m, lambda: compiled(*arguments)),
        "first_s": first, "ready_s": ready, "same": same, "nbytes": nbytes,
    }  # fmt: skip


def pass_speed(m: Any, scale: int) -> float:
    """Return the bytes that a copy reads and writes in a millisecond."""
    source = m.empty(PASS_BYTES // 8 // scale, device="cuda")
    target = m.empty_like(source)
    return 2 * source.nbytes / milliseconds(m, lambda: target.copy_(source))


def libraries() -> dict[str, Any]:
    """Return Flambeau, and PyTorch if it is installed."""
    found = {"flambeau": import_module("flambeau")}
    try:
        found["torch"] = import_module("torch")
    except ImportError:
        print("torch is not installed: no comparison")
    return {name: m for name, m in found.items() if m.cuda.is_available()}


# -- the table --------------------------------------------------------------------------------------------

HEAD = (
    "eager",
    "compiled",
    "torch eager",
    "torch comp.",
    "one pass",
    "of torch",
    "of pass",
    "first s",
    "torch s",
)


def print_row(name: str, row: dict[str, Any]) -> None:
    """Print one kernel: milliseconds, the ratios of our compiled time, seconds of the first call, and remarks."""
    ours, theirs = row["flambeau"], row.get("torch", {})
    lost = float("nan")
    once, compiled = row["pass_ms"], ours.get("compiled_ms", lost)
    peer = theirs.get("compiled_ms", lost)
    figures = [ours.get("eager_ms", lost), compiled, theirs.get("eager_ms", lost), peer, once]
    figures += [compiled / peer, compiled / once, ours.get("ready_s", lost), theirs.get("ready_s", lost)]
    remark = "" if ours.get("same", True) else "  BITS DIFFER FROM EAGER"
    errors = [
        f"  {name}: {row[name]['error']}" for name in ("flambeau", "torch") if "error" in row.get(name, {})
    ]
    print(f"{name:26}" + "".join(f"{x:>12.3f}" for x in figures) + remark + "".join(errors), flush=True)


def main() -> int:
    """Measure the named kernels, print the table, and return 1 if bits differ or a kernel of ours fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"beginnings of: {', '.join(KERNELS)}")
    parser.add_argument("--smaller", type=int, default=1, help="divide the number of elements by this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
    os.environ.setdefault("FLAMBEAU_KERNEL_CACHE", tempfile.mkdtemp())
    known = libraries()
    if "flambeau" not in known:
        print("there is no GPU that Flambeau can use")
        return 1
    speed = pass_speed(known["flambeau"], args.smaller)
    print(f"{'milliseconds':26}" + "".join(f"{title:>12}" for title in HEAD))
    rows: dict[str, dict[str, Any]] = {}
    for name in KERNELS:
        if args.names and not any(name.startswith(each) for each in args.names):
            continue
        row: dict[str, Any] = {}
        for library, m in known.items():
            try:
                row[library] = measure(m, name, args.smaller)
            except Exception as error:
                row[library] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
            m.cuda.empty_cache()
        print_row(name, {**row, "pass_ms": row["flambeau"].get("nbytes", 0) / speed})
        rows[name] = row
    print(
        json.dumps({"device": known["flambeau"].cuda.get_device_name(0), "bytes_per_ms": speed, "rows": rows})
    )
    ours = [row["flambeau"] for row in rows.values()]
    return int(any("error" in each or not each["same"] for each in ours))


if __name__ == "__main__":
    sys.exit(main())
