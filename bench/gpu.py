"""Host calls, kernels, copies, race detection and start on an NVIDIA GPU, next to PyTorch and CuPy.

`python bench/gpu.py [host] [device] ...`.

    host      microseconds of the host for one call; rounds of the libraries alternate, so that all meet the same noise
    floors    what the host's part is made of: the driver API's own calls, our launch, a plan's product
    device    microseconds of the device, by events around the call, at 64 Mi elements
    copies    GB/s between the host, pinned and pageable, and the device
    races     what the race detector adds to an operation
    start     import, first operation and first product in fresh processes, without and with kernels on disk

PyTorch and CuPy are optional. Both get the same TF32 setting, which each product's name says.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
warnings.simplefilter("ignore")

import flambeau  # noqa: E402

ROUNDS, CALLS, TIMES = 15, 200, 15
Calls = dict[str, Callable[[], Any]]


def libraries() -> dict[str, Any]:
    """Flambeau, and those of its peers that are installed."""
    found = {"flambeau": flambeau}
    for name in ("torch", "cupy"):
        try:
            found[name] = import_module(name)
        except ImportError:
            print(f"{name} is not installed: no comparison")
    return found


def row(name: str, times: dict[str, float]) -> None:
    """Return a line of the table: microseconds of each library, and Flambeau's divided by PyTorch's."""
    cells = "".join(f"{times.get(n, float('nan')):>10.2f}" for n in ("flambeau", "torch", "cupy"))
    ratio = times.get("flambeau", float("nan")) / times.get("torch", float("nan"))
    print(f"{name:28}{cells}{ratio:>9.2f}")


def head(title: str) -> None:
    print(f"\n{title:28}{'flambeau':>10}{'torch':>10}{'cupy':>10}{'ratio':>9}")


def compare(
    title: str, calls: dict[str, Calls], measure: Callable[[str, dict[str, Any]], dict[str, float]]
) -> None:
    """Print a row for each name of our calls; a call that fails is said and left out."""
    head(title)
    for name in calls["flambeau"]:
        ready = {}
        for library, known in calls.items():
            if name not in known:
                continue
            try:
                known[name]()
                ready[library] = known[name]
            except Exception as error:
                print(f"  {name}: {library}: {type(error).__name__}: {str(error)[:150]}")
        if ready:
            row(name, measure(name, ready))


# -- the host's part ------------------------------------------------------------------------------------------


def host_calls(torch: Any) -> Calls:
    a, b, out = (torch.ones(1024, device="cuda") for _ in range(3))
    m, n = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    line, column = torch.ones(32, 1, device="cuda"), torch.ones(32, device="cuda")
    side, event, marked = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    marked.record()

    def guard() -> None:
        with torch.cuda.stream(side):
            pass

    return {
        "a + b": lambda: a + b,
        "a + 1.5": lambda: a + 1.5,
        "a + b, broadcast": lambda: line + column,
        "a.relu()": lambda: a.relu(),
        "a.add_(b)": lambda: a.add_(b),
        "a.mul_(1.0)": lambda: a.mul_(1.0),
        "add(a, b, out=)": lambda: torch.add(a, b, out=out),
        "empty(1024)": lambda: torch.empty(1024, device="cuda"),
        "zeros(1024)": lambda: torch.zeros(1024, device="cuda"),
        "a.sum()": lambda: a.sum(),
        "m.sum(1)": lambda: m.sum(1),
        "softmax(m, 1)": lambda: torch.softmax(m, 1),
        "mm 64x64": lambda: torch.mm(m, n),
        "m @ n": lambda: m @ n,
        "m.t()": lambda: m.t(),
        "a.view(32, 32)": lambda: a.view(32, 32),
        "a.clone()": lambda: a.clone(),
        "out.copy_(a)": lambda: out.copy_(a),
        "with stream": guard,
        "Event.record": lambda: event.record(),
        "stream.wait_event": lambda: side.wait_event(marked),
        "current_stream()": torch.cuda.current_stream,
        "memory_allocated()": torch.cuda.memory_allocated,
    }


def cupy_host_calls(cp: Any) -> Calls:
    a, b, out = (cp.ones(1024, "f4") for _ in range(3))
    m, n = cp.ones((64, 64), "f4"), cp.ones((64, 64), "f4")
    return {
        "a + b": lambda: a + b, "a + 1.5": lambda: a + 1.5, "add(a, b, out=)": lambda: cp.add(a, b, out=out),
        "empty(1024)": lambda: cp.empty(1024, "f4"), "a.sum()": lambda: a.sum(), "mm 64x64": lambda: m @ n,
        "current_stream()": cp.cuda.get_current_stream,
    }  # fmt: skip


def host() -> None:
    found = libraries()
    calls = {n: cupy_host_calls(m) if n == "cupy" else host_calls(m) for n, m in found.items()}
    found["flambeau"].backends.cuda.matmul.allow_tf32 = False
    sync = flambeau.cuda.synchronize

    def measure(_: str, ready: dict[str, Any]) -> dict[str, float]:
        times: dict[str, list[float]] = {n: [] for n in ready}
        for _ in range(ROUNDS):
            for name, call in ready.items():
                sync()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
        sync()
        return {n: statistics.median(t) for n, t in times.items()}

    compare("host time, us", calls, measure)


def floors() -> None:
    """Layers of a warm call: the driver API alone, then with our parts around it."""
    from cuda.bindings import driver as cu

    from flambeau.ops.op import table
    from flambeau.tensor import call

    a, b = flambeau.ones(1024, device="cuda"), flambeau.ones(1024, device="cuda")
    m = flambeau.ones(64, 64, device="cuda")
    c, _ = a + b, m @ m
    stream = flambeau.cuda.current_stream().handle
    plan = call.plans[(table["add"], (), a.meta, b.meta)]
    product = next(p for key, p in call.plans.items() if key[0] is table["matmul"])
    driver, exe = plan.context.backing, plan.executable
    native = driver._streams.queues[stream].native
    event = cu.cuEventCreate(2)[1]
    ptrs = (c.ptr, a.ptr, b.ptr)
    layers: Calls = {
        "cuLaunchKernel": lambda: exe.call(native, exe.address, 0),
        "driver.launch": lambda: plan.launch(ptrs, (), stream),
        "call.binary": lambda: call.binary(table["add"], a, b),
        "product, launch": lambda: product.launch((m.ptr, m.ptr, m.ptr), (), stream),
        "cuEventRecord": lambda: cu.cuEventRecord(event, native),
        "cuStreamWaitEvent": lambda: cu.cuStreamWaitEvent(native, event, 0),
    }
    print(f"\n{'layers, us':28}{'median':>10}{'best':>10}")
    for name, run in layers.items():
        times = []
        for _ in range(ROUNDS):
            flambeau.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                run()
            times.append((time.perf_counter() - start) / CALLS * 1e6)
        print(f"{name:28}{statistics.median(times):>10.2f}{min(times):>10.2f}")


# -- the device's part ----------------------------------------------------------------------------------------


def device_calls(torch: Any) -> Calls:
    many = 64 << 20
    x, y, out = (torch.ones(many, device="cuda") for _ in range(3))
    x.normal_(), y.normal_()
    square, other = x.view(8192, 8192), y.view(8192, 8192)
    index = torch.randint(0, 8192, (8192, 8192), device="cuda")
    h, k = x.to(torch.bfloat16), y.to(torch.bfloat16)
    p, q = square[:4096, :4096], other[:4096, :4096]
    hp, hq = h.view(8192, 8192)[:4096, :4096], k.view(8192, 8192)[:4096, :4096]
    dp = p.to(torch.float64)
    batch, signal = x[: 256 << 16].view(256, 256, 256), torch.complex(p, q)
    rows = x.view(16384, 4096)

    def product(a: Any, b: Any, tf32: bool) -> Callable[[], Any]:
        def run() -> Any:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            return a @ b

        return run

    return {
        "copy": lambda: out.copy_(x),
        "add": lambda: torch.add(x, y, out=out),
        "add bfloat16": lambda: h + k,
        "exp": lambda: torch.exp(x),
        "sum": lambda: x.sum(),
        "sum rows": lambda: square.sum(1),
        "sum columns": lambda: square.sum(0),
        "argmax rows": lambda: square.argmax(1),
        "softmax 16384x4096": lambda: torch.softmax(rows, 1),
        "transpose": lambda: square.t().contiguous(),
        "cumsum rows": lambda: torch.cumsum(square, 1),
        "cumsum all": lambda: torch.cumsum(x, 0),
        "gather": lambda: torch.gather(square, 1, index),
        "randn": lambda: out.normal_(),
        "sort 16 Mi": lambda: torch.sort(x[: 16 << 20]),
        "mm 4096 float32": product(p, q, False),
        "mm 4096 TF32": product(p, q, True),
        "mm 4096 bfloat16": product(hp, hq, False),
        "mm 4096 float64": product(dp, dp, False),
        "bmm 256x256x256 float32": product(batch, batch, False),
        "bmm 256x256x256 TF32": product(batch, batch, True),
        "fft2 4096x4096": lambda: torch.fft.fft2(signal),
        "rfft 16384x4096": lambda: torch.fft.rfft(rows),
    }


def device() -> None:
    """Measure one library's calls after the other's, because each needs a few GiB."""
    times: dict[str, dict[str, float]] = {}
    for library, torch in libraries().items():
        if library == "cupy":
            continue
        calls = device_calls(torch)
        for name, call in calls.items():
            try:
                times.setdefault(name, {})[library] = _device_us(torch, call)
            except Exception as error:
                print(f"  {name}: {library}: {type(error).__name__}: {str(error)[:150]}")
        del calls
        torch.cuda.empty_cache()
    head("device time, us")
    for name, found in times.items():
        row(name, found)


def _device_us(torch: Any, call: Callable[[], Any]) -> float:
    call(), call()
    times = []
    for _ in range(TIMES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def copies() -> None:
    """256 MiB each way."""
    head("256 MiB copied, us")
    found = {n: m for n, m in libraries().items() if n != "cupy"}
    for pinned in (True, False):
        times: dict[str, dict[str, list[float]]] = {"to the device": {}, "to the host": {}}
        made = {}
        for name, torch in found.items():
            there = torch.ones(64 << 20, device="cuda")
            here = torch.ones(64 << 20)
            made[name] = torch, here.pin_memory() if pinned else here, there
        for _ in range(ROUNDS):
            for name, (torch, here, there) in made.items():
                for way, target, source in (("to the device", there, here), ("to the host", here, there)):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    target.copy_(source, non_blocking=pinned)
                    torch.cuda.synchronize()
                    times[way].setdefault(name, []).append((time.perf_counter() - start) * 1e6)
        for way, each in times.items():
            row(
                f"{'pinned' if pinned else 'pageable'} {way}",
                {n: statistics.median(t) for n, t in each.items()},
            )


# -- the race detector ----------------------------------------------------------------------------------------

RACES = """
import time, flambeau as torch
a, b = torch.ones(1024, device="cuda"), torch.ones(1024, device="cuda")
best = 1e9
for _ in range(15):
    torch.cuda.synchronize(); start = time.perf_counter()
    for _ in range(300): a + b
    best = min(best, (time.perf_counter() - start) / 300 * 1e6)
print(best)
"""


def races() -> None:
    """Host time of `a + b` in fresh processes, with and without the detector."""
    best = {}
    for how in ("off", "warn"):
        environment = os.environ | {"FLAMBEAU_RACES": how, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-c", RACES], env=environment, capture_output=True, text=True, check=False
        )
        best[how] = float(done.stdout.split()[-1]) if done.returncode == 0 else float("nan")
        if done.returncode:
            print(done.stderr[-500:])
    print(f"\nraces: a + b {best['off']:.2f} us without the detector, {best['warn']:.2f} with it")


# -- starting up ----------------------------------------------------------------------------------------------

START = """
import time; t0 = time.perf_counter()
import numpy; t1 = time.perf_counter()
import {library} as torch; t2 = time.perf_counter()
x = torch.ones(4, device="cuda") + torch.ones(4, device="cuda"); torch.cuda.synchronize(); t3 = time.perf_counter()
m = torch.ones(64, 64, device="cuda"); m @ m; torch.cuda.synchronize(); t4 = time.perf_counter()
took = "numpy {{:.2f}} s, import {{:.2f}} s more, first operation {{:.2f}} s, first product {{:.2f}} s"
print(took.format(t1 - t0, t2 - t1, t3 - t2, t4 - t3))
"""


def start() -> None:
    """Measure the start of a program in fresh processes.

    The first measurement warms the file cache of the machine and is not printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FLAMBEAU_KERNEL_CACHE": folder, "PYTHONPATH": str(ROOT / "src")}
        print()
        for label, library in (("", "numpy"), ("no kernels on disk", "flambeau"), ("kernels on disk", "flambeau"),
                               ("kernels on disk", "flambeau"), ("PyTorch", "torch")):  # fmt: skip
            command = [sys.executable, "-c", START.format(library=library)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if label:
                print(f"start, {label}: {done.stdout.strip() or done.stderr.strip()[-200:]}")


PARTS = {"host": host, "floors": floors, "device": device, "copies": copies, "races": races, "start": start}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
