"""One command for a machine with an NVIDIA GPU: the contract, every operator against the CPU, speed beside PyTorch.

    python tests/gpu/run_all.py [contract] [operators] [layouts] [random] [start] [speed]

Run from the repository's root. Prints a short table; the exit status is 1 if anything failed. The CPU's bits are the
virtual GPU's (tests/ops), so the comparison is with both. PyTorch is optional and appears in `speed` alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402

import flambeau  # noqa: E402
from flambeau.core.dtype import float32  # noqa: E402
from flambeau.core.dtype import from_numpy as dtype_of  # noqa: E402
from flambeau.core.errors import NotSupportedError  # noqa: E402
from flambeau.core.memory import array_at  # noqa: E402
from flambeau.core.meta import Meta  # noqa: E402
from flambeau.core.random import Policy  # noqa: E402
from flambeau.driver.api import Launch  # noqa: E402
from flambeau.driver.cuda.driver import CudaDriver, build  # noqa: E402
from flambeau.driver.cuda.program import Program  # noqa: E402
from flambeau.ops.op import Op, table  # noqa: E402
from flambeau.runtime import settings, system  # noqa: E402
from flambeau.tensor.call import call, call_into  # noqa: E402
from flambeau.tensor.tensor import Tensor  # noqa: E402
from flambeau.testing import conformance, operators  # noqa: E402

GPU = flambeau.device("cuda", 0)


# -- the driver's contract -----------------------------------------------------------------------------------


def contract() -> int:
    """Every case of the conformance suite on a driver of its own."""
    failed = 0
    for case in conformance.cases:
        driver = CudaDriver(settings.kernel_cache())
        try:
            case(driver)
        except Exception:
            failed += 1
            print(f"FAILED {case.__name__}\n{traceback.format_exc(limit=-2)}")
        finally:
            driver.close()
    print(f"contract: {len(conformance.cases) - failed} of {len(conformance.cases)} cases")
    return failed


# -- every operator against the CPU --------------------------------------------------------------------------


def samples() -> Iterator[tuple[Op, Any, tuple[Any, ...], tuple[Any, ...]]]:
    for op, kind in operators.cases():
        for inputs, params in op.samples(operators.maker(kind, 0), kind):
            yield op, kind, inputs, tuple(GPU if isinstance(p, flambeau.device) else p for p in params)


LAYOUTS = (operators.plain, operators.reversed_dims, operators.stepped)


def precompile() -> None:
    """Compile the kernels of all samples in parallel into the cache on disk."""
    driver = CudaDriver(settings.kernel_cache())
    driver.mem_info(0)
    device = driver._device(0)
    sources: dict[str, None] = {}
    for op, _, inputs, params in samples():
        for layout in LAYOUTS:
            metas = [_meta(x, layout) if isinstance(x, np.ndarray) else type(x) for x in inputs]
            flags = [float32 if name == "default_dtype" else False for name in op.flags]
            try:
                s = op.rule(metas, (*params, *flags))
                program = build.build(Launch(op.kernel, s.outputs, s.inputs, s.params), device, driver)
            except Exception:
                continue  # the comparison will say it
            if isinstance(program, Program):
                sources[program.source] = None
    compiler = driver.compiler(device)
    start = time.perf_counter()

    def compile_one(source: str) -> None:
        try:
            compiler.cubin(source)
        except Exception as error:
            print("COMPILE", str(error)[:600])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources))
    print(f"compiled {compiler.compiled} of {len(sources)} kernels in {time.perf_counter() - start:.1f} s")
    driver.close()


def _meta(x: np.ndarray[Any, Any], layout: operators.Layout) -> Meta:
    _, view = layout(x)
    strides = tuple([step // x.itemsize for step in view.strides])
    return Meta.of(x.shape, strides, dtype_of(x.dtype), GPU)


def compare() -> int:
    """Run all samples on the GPU and on the CPU: how many are the same bits, how many ulps the others differ."""
    flambeau.backends.cuda.matmul.allow_tf32 = False
    precompile()
    same: dict[str, int] = defaultdict(int)
    ulps: dict[str, float] = defaultdict(float)
    worst: dict[str, str] = {}
    missing: dict[str, str] = {}
    failures: dict[str, str] = {}
    for op, kind, inputs, params in samples():
        for layout in LAYOUTS:
            label = f"{op.name} {kind.name}"
            try:
                distance = _distance(op, inputs, params, layout)
            except NotSupportedError as error:
                missing[op.name] = str(error)
                continue
            except NotImplementedError:
                continue  # CUDA devices refuse the dtype, as PyTorch's do
            except Exception as error:
                failures.setdefault(label, f"{type(error).__name__}: {str(error)[:160]}")
                continue
            same[op.name] += distance == 0
            if distance > ulps[op.name]:
                ulps[op.name], worst[op.name] = distance, f"{kind.name} {params}"
    exact = [name for name in same if ulps[name] == 0]
    print(f"operators: {len(exact)} the same bits as the CPU; {len(missing)} without a CUDA form")
    print(
        "  ulps:",
        ", ".join(f"{n} {u:.0f} ({worst[n]})" for n, u in sorted(ulps.items(), key=lambda x: -x[1]) if u),
    )
    print("  missing:", ", ".join(sorted(missing)))
    for label, text in failures.items():
        print("  FAILED", label, text)
    return len(failures)


def _distance(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...], layout: operators.Layout) -> float:
    host = [operators.tensor_of(x, layout) if isinstance(x, np.ndarray) else x for x in inputs]
    there = [x.to(GPU) if isinstance(x, Tensor) else x for x in host]
    on_cpu = tuple(flambeau.device("cpu") if isinstance(p, flambeau.device) else p for p in params)
    want, got = call(op, host, on_cpu), call(op, there, params)
    pairs = zip(_several(want), _several(got), strict=True)
    return max([_ulps(_array(a), _array(b)) for a, b in pairs])


def _several(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _array(x: Tensor) -> np.ndarray[Any, Any]:
    x = x.cpu()
    return np.array(array_at(x.ptr, x.meta.shape, x.meta.dtype.numpy, x.meta.byte_strides))


def _ulps(want: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """The largest distance in units of the last place; infinite where shape, dtype, NaN or infinity differ."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    if want.tobytes() == got.tobytes() or not want.size:
        return 0
    kind = dtype_of(want.dtype)
    if kind.is_complex:
        real = kind.to_real().numpy
        want, got = (np.ascontiguousarray(x).reshape(-1).view(real) for x in (want, got))
        kind = kind.to_real()
    if not kind.is_floating_point:
        return float("inf")
    bits = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[kind.itemsize]
    a, b = (x.reshape(-1).view(bits).astype(object) for x in (want, got))
    limit = 1 << (kind.itemsize * 8 - 1)
    nan = np.isnan(want.astype(np.float64)).reshape(-1), np.isnan(got.astype(np.float64)).reshape(-1)
    if (nan[0] != nan[1]).any():
        return float("inf")
    far = [
        abs((x if x >= 0 else -limit - x) - (y if y >= 0 else -limit - y))
        for x, y, n in zip(a, b, nan[0], strict=True)
        if not n
    ]
    return float(max(far, default=0))


# -- layouts and sizes against NumPy --------------------------------------------------------------------------


def layouts(count: int = 150) -> int:
    """Copies and reductions of random shapes, permuted, sliced and misaligned, and of more than 2 ** 31 elements."""
    random, failed = np.random.default_rng(0), 0
    for _ in range(count):
        ndim = int(random.integers(1, 5))
        shape = [int(n) for n in random.integers(1, {1: 3_000_000, 2: 1500, 3: 120, 4: 40}[ndim], ndim)]
        kind = [np.int8, np.int16, np.int32, np.int64, np.float32][int(random.integers(5))]
        array = random.integers(-100, 100, shape).astype(kind)
        tensor = flambeau.from_numpy(array).to(GPU)
        order = [int(d) for d in random.permutation(ndim)]
        start = int(random.integers(0, 3)) if shape[order[-1]] > 3 else 0
        array, tensor = array.transpose(order)[..., start:], tensor.permute(order)[..., start:]
        dims = tuple(sorted({int(d) for d in random.integers(0, ndim, 2)}))
        checks = {
            "contiguous": (lambda x: x.contiguous(), lambda x: x),
            "add": (lambda x: x + x, lambda x: x + x),
            f"sum {dims}": (lambda x, d=dims: x.sum(d), lambda x, d=dims: x.sum(d)),
            f"amax {dims}": (lambda x, d=dims: x.amax(d), lambda x, d=dims: x.max(d)),
            f"argmax {dims[0]}": (lambda x, d=dims[0]: x.argmax(d), lambda x, d=dims[0]: x.argmax(d)),
            "sum": (lambda x: x.sum(), lambda x: x.astype(np.float64).sum()),
        }
        for name, (ours, numpys) in checks.items():
            got, want = ours(tensor).cpu().numpy(), numpys(array)
            if got.shape != want.shape or not (got == want.astype(got.dtype)).all():
                failed += 1
                print(f"  FAILED {name} of {array.shape} strides {array.strides} {kind.__name__}")
    many = (1 << 31) + 12345
    x = flambeau.ones(many, dtype=flambeau.int8, device=GPU)
    x[-1] = 3
    last = (x + x)[-2:].tolist()
    wide = x[::2].contiguous().sum().item(), x.sum().item(), x.argmax().item()
    if (last, wide) != ([2, 6], ((many + 1) // 2 + 2, many + 2, many - 1)):
        failed += 1
        print("  FAILED", many, "elements:", last, wide)
    print(f"layouts: {count} random ones, and {many} elements; {failed} failed")
    return failed


# -- starting up ----------------------------------------------------------------------------------------------

START = """
import time; t0 = time.perf_counter()
import {library} as torch; t1 = time.perf_counter()
x = torch.ones(4, device="cuda") + torch.ones(4, device="cuda"); torch.cuda.synchronize(); t2 = time.perf_counter()
m = torch.ones(64, 64, device="cuda"); m @ m; torch.cuda.synchronize(); t3 = time.perf_counter()
print(f"import {{t1 - t0:.2f}} s, first operation {{t2 - t1:.2f}} s, first product {{t3 - t2:.2f}} s")
"""


def start() -> int:
    """Import, first operation and first product in a fresh process: without and with compiled kernels on disk."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FLAMBEAU_KERNEL_CACHE": folder, "PYTHONPATH": str(ROOT / "src")}
        for label, library in (("cold", "flambeau"), ("warm", "flambeau"), ("PyTorch", "torch")):
            command = [sys.executable, "-c", START.format(library=library)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            print(f"start, {label}: {done.stdout.strip() or done.stderr.strip()[-200:]}")
            if done.returncode and library == "flambeau":
                return 1
    return 0


# -- random numbers against core/random.py ------------------------------------------------------------------------

PARAMETERS = {
    "uniform_": (-1.0, 2.0), "normal_": (0.5, 2.0), "random_": (-5, 1000, False), "bernoulli_": (0.3,),
    "exponential_": (1.5,), "cauchy_": (0.0, 1.0), "geometric_": (0.25,), "log_normal_": (0.0, 0.5),
}  # fmt: skip


def random_numbers() -> int:
    """Each distribution and dtype, 300,000 numbers: the CPU's Philox bits, but for the rounding of log and sin."""
    failed = 0
    properties = flambeau.cuda.get_device_properties(0)
    policy = Policy(properties.multi_processor_count, properties.max_threads_per_multi_processor)
    for name, parameters in PARAMETERS.items():
        worst: dict[str, float] = {}
        for kind in table[name].dtypes:
            meta = Meta.contiguous_of((300, 1000), kind, GPU)
            try:
                there = flambeau.empty(300, 1000, dtype=kind, device=GPU)
                call_into(table[name], (there,), (7 << 33, 40, *parameters), (meta, policy))
                got = _array(there)
                want = np.empty(meta.shape, kind.numpy)
                launch = Launch(table[name].kernel, (meta,), (), (meta, policy))
                table[name].kernel.host(launch)([want], [7 << 33, 40, *parameters])
                worst[kind.name] = _spread(want, got)
            except Exception as error:
                failed += 1
                print("  FAILED", name, kind, f"{type(error).__name__}: {str(error)[:300]}")
        print(f"random {name}:", ", ".join(f"{n} {u:.3g}" for n, u in worst.items() if u) or "the same bits")
    return failed


def _spread(want: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """The largest difference, relative to numbers greater than 1."""
    if want.tobytes() == got.tobytes():
        return 0.0
    a, b = want.astype(np.complex128), got.astype(np.complex128)
    return float(np.max(np.abs(a - b) / np.maximum(1, np.abs(a))))


# -- speed, beside PyTorch if it is installed -------------------------------------------------------------------


def host_us(call: Callable[[], Any], sync: Callable[[], Any], repeats: int = 2000, rounds: int = 7) -> float:
    """Median over rounds of the host time of a call, the queue being drained in between."""
    times = []
    for _ in range(rounds):
        sync()
        start = time.perf_counter()
        for _ in range(repeats // rounds):
            call()
        times.append((time.perf_counter() - start) / (repeats // rounds))
        sync()
    return sorted(times)[rounds // 2] * 1e6


def device_us(torch: Any, call: Callable[[], Any], repeats: int = 20) -> float:
    """Median of events around the call."""
    call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[repeats // 2]


def host_calls(torch: Any) -> dict[str, Callable[[], Any]]:
    a, b, out = (torch.ones(1024, device="cuda") for _ in range(3))
    m, n = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    row = torch.ones(32, 1, device="cuda")
    column = torch.ones(32, device="cuda")
    side, event = torch.cuda.Stream(), torch.cuda.Event()

    def guard() -> None:
        with torch.cuda.stream(side):
            pass

    return {
        "a + b": lambda: a + b,
        "a + 1.5": lambda: a + 1.5,
        "a + b, broadcast": lambda: row + column,
        "a.add_(b)": lambda: a.add_(b),
        "add(a, b, out=)": lambda: torch.add(a, b, out=out),
        "empty(1024)": lambda: torch.empty(1024, device="cuda"),
        "a.sum()": lambda: a.sum(),
        "mm 64x64": lambda: torch.mm(m, n),
        "with stream": guard,
        "Event.record": lambda: event.record(),
        "stream.wait_event": lambda: side.wait_event(event),
        "current_stream()": torch.cuda.current_stream,
        "memory_allocated()": torch.cuda.memory_allocated,
    }


def device_calls(torch: Any) -> dict[str, Callable[[], Any]]:
    n = 64 << 20
    x, y, out = (torch.ones(n, device="cuda") for _ in range(3))
    x.normal_(), y.normal_()
    square = x.view(8192, 8192)
    h = x.to(torch.bfloat16)
    wide = square[:4096, :4096].to(torch.float64)
    return {
        "copy": lambda: out.copy_(x),
        "add": lambda: torch.add(x, y, out=out),
        "add bfloat16": lambda: h + h,
        "exp": lambda: torch.exp(x),
        "sum": lambda: x.sum(),
        "sum rows": lambda: square.sum(1),
        "sum columns": lambda: square.sum(0),
        "argmax rows": lambda: square.argmax(1),
        "transpose": lambda: square.t().contiguous(),
        "cumsum": lambda: torch.cumsum(square, 1),
        "gather": lambda: torch.gather(square, 1, torch.zeros(8192, 8192, dtype=torch.int64, device="cuda")),
        "randn": lambda: out.normal_(),
        "mm 4096 float32": lambda: torch.mm(square[:4096, :4096], square[4096:, 4096:]),
        "mm 4096 float64": lambda: torch.mm(wide, wide),
        "mm 4096 bfloat16": lambda: torch.mm(
            h.view(8192, 8192)[:4096, :4096], h.view(8192, 8192)[4096:, 4096:]
        ),
    }


def speed() -> int:
    libraries = [flambeau]
    try:
        import torch

        libraries.append(torch)
    except ImportError:
        print("PyTorch is not installed: no comparison")
    print(f"{'':22}{'flambeau':>10}{'torch':>10}   us")
    for make, measure in ((host_calls, None), (device_calls, device_us)):
        rows: dict[str, list[Any]] = defaultdict(list)
        for library in libraries:
            library.backends.cuda.matmul.allow_tf32 = False
            calls = make(library)
            for name, run in calls.items():
                try:
                    run()
                    rows[name].append(
                        measure(library, run) if measure else host_us(run, library.cuda.synchronize)
                    )
                except Exception as error:
                    rows[name].append(f"{type(error).__name__}")
            del calls
            library.cuda.empty_cache()
        for name, found in rows.items():
            print(
                f"{name:22}"
                + "".join(f"{x:10.1f}" if isinstance(x, float) else f"{x[:9]:>10}" for x in found)
                + (
                    f"{found[0] / found[1]:10.2f}"
                    if len(found) == 2 and all(isinstance(x, float) for x in found)
                    else ""
                )
            )
    return 0


def main() -> int:
    parts = {
        "contract": contract, "operators": compare, "layouts": layouts, "random": random_numbers, "start": start,
        "speed": speed,
    }  # fmt: skip
    chosen = sys.argv[1:] or list(parts)
    failed = sum(parts[name]() for name in chosen)
    print(f"{'FAILED' if failed else 'passed'}: {failed} failures")
    for problem in system.close_all():
        print("at close:", problem)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
