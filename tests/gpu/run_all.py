"""One command for a machine with an NVIDIA GPU: the contract, every operator against the CPU, speed beside PyTorch.

    python tests/gpu/run_all.py [contract] [operators] [random] [speed]

Run from the repository's root. Prints a short table; the exit status is 1 if anything failed. The CPU's bits are the
virtual GPU's (tests/ops), so the comparison is with both. PyTorch is optional and appears in `speed` alone.
"""

from __future__ import annotations

import os
import sys
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
from flambeau.driver.api import Launch  # noqa: E402
from flambeau.driver.cuda import CudaDriver, build  # noqa: E402
from flambeau.driver.cuda.program import Program  # noqa: E402
from flambeau.ops.op import Op, table  # noqa: E402
from flambeau.runtime import settings, system  # noqa: E402
from flambeau.core.random import Policy  # noqa: E402
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
        want, got, kind = want.view(real), got.view(real), kind.to_real()
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


# -- random numbers against core/random.py ------------------------------------------------------------------------

PARAMETERS = {
    "uniform_": (-1.0, 2.0), "normal_": (0.5, 2.0), "random_": (-5, 1000, False), "bernoulli_": (0.3,),
    "exponential_": (1.5,), "cauchy_": (0.0, 1.0), "geometric_": (0.25,), "log_normal_": (0.0, 0.5),
}  # fmt: skip


def random_numbers() -> int:
    """Each distribution in each dtype, 300,000 numbers: the same bits as the CPU's Philox, but for ulps of log and sin."""
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
    parts = {"contract": contract, "operators": compare, "random": random_numbers, "speed": speed}
    chosen = sys.argv[1:] or list(parts)
    failed = sum(parts[name]() for name in chosen)
    print(f"{'FAILED' if failed else 'passed'}: {failed} failures")
    for problem in system.close_all():
        print("at close:", problem)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
