"""One command for a machine with NVIDIA GPUs: the contract, every operator against the CPU, the tests, examples.

    python tests/gpu/run_all.py [part ...] [--limit SECONDS] [-n PROCESSES] [--only PATTERN ...]

Run from the repository's root. Ends with a table: a line for each part, and the names of what failed; the exit status
is 1 if anything did, 2 if there is no GPU. A part that takes longer than the limit is ended, and its line says what it
had found. The CPU's bits are the virtual GPU's (tests/ops), so the comparison is with both. `tests` is the suite's part
that wants a GPU (the marker `gpu` or `either`), `oracle` the oracle's tests with both libraries on the GPU; `examples`
and `pair` are worth most on two GPUs. Speed is bench/gpu.py's.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402

import flambeau  # noqa: E402
from flambeau.core.dtype import from_numpy as dtype_of  # noqa: E402
from flambeau.core.errors import NotSupportedError  # noqa: E402
from flambeau.core.host_arrays import array_at  # noqa: E402
from flambeau.core.meta import Meta  # noqa: E402
from flambeau.core.random import DrawGrid  # noqa: E402
from flambeau.driver.cuda.driver import CudaDriver  # noqa: E402
from flambeau.driver.cuda.probe import why_not  # noqa: E402
from flambeau.driver.protocol import Launch  # noqa: E402
from flambeau.ops.op import Op, table  # noqa: E402
from flambeau.runtime import system  # noqa: E402
from flambeau.runtime.devices import configuration  # noqa: E402
from flambeau.tensor.call import call, call_into  # noqa: E402
from flambeau.tensor.tensor import Tensor  # noqa: E402
from flambeau.testing import conformance, operator_properties  # noqa: E402

GPU = flambeau.device("cuda", 0)


# -- the driver's contract -----------------------------------------------------------------------------------


def contract() -> int:
    """Every case of the conformance suite on a driver of its own."""
    failed = 0
    for case in conformance.cases:
        driver = CudaDriver(configuration.kernel_cache())
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


def samples(op: Op) -> Iterator[tuple[Any, tuple[Any, ...], tuple[Any, ...]]]:
    """(dtype, inputs, params): an operator's samples in each dtype."""
    for kind in op.dtypes:
        for number, (inputs, params) in enumerate(op.samples(operator_properties.maker(kind, 0), kind)):
            for tried, how in [(inputs, params), *(_of_few(op, inputs, params) if number == 0 else ())]:
                yield kind, tried, tuple(GPU if isinstance(p, flambeau.device) else p for p in how)


def _of_few(
    op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The sample with operands of no elements and of one row, where the CPU takes them."""
    for variant in (operator_properties.no_elements, operator_properties.one_row):
        few = tuple(np.asarray(variant(x)) if isinstance(x, np.ndarray) else x for x in inputs)
        try:
            call(
                op,
                [operator_properties.tensor_of(x) if isinstance(x, np.ndarray) else x for x in few],
                params,
            )
        except (RuntimeError, IndexError, TypeError, ValueError):
            continue
        yield few, params


LAYOUTS = (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)


@dataclass
class Found:
    """What a comparison found, by operator: samples of the same bits, the largest distance and where."""

    same: dict[str, int] = field(default_factory=dict)
    ulps: dict[str, float] = field(default_factory=dict)
    worst: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Take in what another process found of other operators."""
        for name in ("same", "ulps", "worst", "missing", "failures"):
            getattr(self, name).update(getattr(other, name))


def compare(processes: int | None, patterns: list[str]) -> int:
    """Run all samples on the GPU and on the CPU: how many are the same bits, how many ulps the others differ."""
    names = [name for name in table if any(fnmatchcase(name, pattern) for pattern in patterns)]
    found, done = Found(), 0
    pool = ProcessPoolExecutor(processes, get_context("spawn"))  # NVRTC's threads wait for each other
    try:
        for one in as_completed([pool.submit(compare_one, name) for name in names]):
            part = one.result()
            found.add(part)
            done += 1
            for label, text in part.failures.items():
                print("FAILED", label, text)
    finally:  # an interrupt too: the limit's
        pool.shutdown(wait=False, cancel_futures=True)
        exact = [name for name in found.same if name not in found.ulps]
        far = sorted(found.ulps.items(), key=lambda x: -x[1])
        print("ulps:", ", ".join(f"{n} {u:.0f} ({found.worst[n]})" for n, u in far))
        print("missing:", ", ".join(sorted(found.missing)))
        print(
            f"operators: {done} of {len(names)} compared, {len(exact)} the same bits as the CPU, "
            f"{len(found.missing)} without a CUDA form"
        )
    return len(found.failures)


def compare_one(name: str) -> Found:
    """Compare one operator, in one of several processes."""
    warnings.simplefilter("ignore")
    flambeau.backends.cuda.matmul.allow_tf32 = False
    flambeau.backends.cudnn.allow_tf32 = False
    op, found = table[name], Found()
    for kind, inputs, params in samples(op):
        images = any(map(operator_properties.is_image, inputs))
        for layout in (*LAYOUTS, operator_properties.channels_innermost) if images else LAYOUTS:
            try:
                distance = _distance(op, inputs, params, layout)
            except NotSupportedError as error:
                found.missing[op.name] = str(error)
                continue
            except NotImplementedError:
                continue  # CUDA devices refuse the dtype, as PyTorch's do
            except Exception as error:
                text = f"{type(error).__name__}: {str(error)[:160]}"
                found.failures.setdefault(f"{op.name} {kind.name}", text)
                continue
            found.same[op.name] = found.same.get(op.name, 0) + (distance == 0)
            if distance > found.ulps.get(op.name, 0):
                found.ulps[op.name], found.worst[op.name] = distance, f"{kind.name} {params}"
    return found


def _distance(
    op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...], layout: operator_properties.Layout
) -> float:
    host = [operator_properties.tensor_of(x, layout) if isinstance(x, np.ndarray) else x for x in inputs]
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
                print(f"FAILED {name} of {array.shape} strides {array.strides} {kind.__name__}")
    many = (1 << 31) + 12345
    x = flambeau.ones(many, dtype=flambeau.int8, device=GPU)
    x[-1] = 3
    last = (x + x)[-2:].tolist()
    wide = x[::2].contiguous().sum().item(), x.sum().item(), x.argmax().item()
    if (last, wide) != ([2, 6], ((many + 1) // 2 + 2, many + 2, many - 1)):
        failed += 1
        print("FAILED", many, "elements:", last, wide)
    print(f"layouts: {count} random ones, and {many} elements; {failed} failed")
    return failed


# -- random numbers against core/random.py ------------------------------------------------------------------------

PARAMETERS = {
    "uniform_": (-1.0, 2.0), "normal_": (0.5, 2.0), "random_": (-5, 1000, False), "bernoulli_": (0.3,),
    "exponential_": (1.5,), "cauchy_": (0.0, 1.0), "geometric_": (0.25,), "log_normal_": (0.0, 0.5),
}  # fmt: skip


def random_numbers() -> int:
    """Each distribution and dtype, 300,000 numbers: the CPU's Philox bits, but for the rounding of log and sin."""
    failed = 0
    properties = flambeau.cuda.get_device_properties(0)
    policy = DrawGrid(properties.multi_processor_count, properties.max_threads_per_multi_processor)
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
                print("FAILED", name, kind, f"{type(error).__name__}: {str(error)[:300]}")
        print(f"random {name}:", ", ".join(f"{n} {u:.3g}" for n, u in worst.items() if u) or "the same bits")
    return failed


def _spread(want: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """The largest difference, relative to numbers greater than 1."""
    if want.tobytes() == got.tobytes():
        return 0.0
    a, b = want.astype(np.complex128), got.astype(np.complex128)
    return float(np.max(np.abs(a - b) / np.maximum(1, np.abs(a))))


# -- the suite's part that wants a GPU, and programs --------------------------------------------------------------

PAIR = [f"tests/gpu/hardware/test_{name}_gpu.py" for name in ("collectives", "launch", "ddp")]
"""Tests whose worlds have a rank for each GPU, and which want them alone."""


def tests(processes: int | None) -> list[list[str]]:
    """`pytest --driver=cuda`, then the tests that want the GPU alone."""
    # The contract speaks of free memory, which other processes take too: it has a part of its own here.
    apart = "tests/conformance/test_drivers.py::test_contract_on_real_gpus"
    alone = _pytest("-m", "alone", "tests/gpu", *[f"--ignore={path}" for path in PAIR])
    return [_beside("-m", "gpu or either", "--deselect", apart, "tests", processes=processes), alone]


def oracle(processes: int | None) -> list[list[str]]:
    """The oracle's tests with both libraries on the GPU, see oracle_on_gpu.py."""
    return [_beside("-p", "oracle_on_gpu", "tests/oracle", processes=processes)]


def examples(processes: int | None) -> list[list[str]]:
    """Programs for two GPUs."""
    run = [sys.executable, "-m", "flambeau", "run", "--quiet", "--driver", "cuda"]
    programs = [[*run, f"examples/{name}.py"] for name in ("digits", "regression")]
    return [*programs, _beside("-m", "gpu or either", "tests/examples", processes=processes)]


def pair(processes: int | None) -> list[list[str]]:
    return [_pytest(*PAIR)]


def _pytest(*what: str) -> list[str]:
    """Other versions' warnings are no errors here."""
    command = [sys.executable, "-m", "pytest", "--driver=cuda", "--tb=short", "-W", "default"]
    return [*command, "-p", "no:cacheprovider", "-p", "no:benchmark", *what]  # which warns beside xdist


def _beside(*what: str, processes: int | None) -> list[str]:
    """In several processes, where pytest-xdist is installed."""
    count = processes or max(1, (os.cpu_count() or 1) // 2)
    return _pytest(*what, *(["-n", str(count), "--dist", "worksteal"] if find_spec("xdist") else []))


# -- parts ------------------------------------------------------------------------------------------------------------

INSIDE = {"contract": contract, "operators": compare, "layouts": layouts, "random": random_numbers}
SUITES: dict[str, Callable[[int | None], list[list[str]]]] = {
    "tests": tests, "oracle": oracle, "examples": examples, "pair": pair,
}  # fmt: skip
GRACE = 15  # seconds that a part has to say what it found
_PYTESTS = re.compile(r"(=+ )?(\d+ \w+, )*\d+ \w+ in [\d.]+s")


@dataclass
class Outcome:
    """Of a part: what it said of itself, the names of what failed, kernels that had to be compiled."""

    part: str
    said: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0
    kernels: int = 0
    ended: bool = False

    def hear(self, line: str) -> None:
        if line.startswith(("FAILED ", "ERROR ")):
            self.failed.append(line.split(" ", 1)[1].strip())
        elif line.startswith(f"{self.part}: ") or _PYTESTS.match(line):
            self.said.append(line.removeprefix(f"{self.part}: ").strip(" =\n"))

    def __str__(self) -> str:
        how = "FAILED" if self.failed else "cut off" if self.ended else "passed"
        said = [*self.said, *(["cut off at the limit"] if self.ended else [])]
        lines = [
            f"{self.part:<10} {how:<7} {self.seconds:6.0f} s {self.kernels:6} compiled  {'; '.join(said)}"
        ]
        return "\n".join([*lines, *[f"    {name[:150]}" for name in self.failed]])


def run_part(part: str, asked: argparse.Namespace) -> Outcome:
    """Run a part's commands one after the other, in processes of their own, until the limit."""
    outcome, began, before = Outcome(part), time.monotonic(), _kernels()
    if part in INSIDE:
        commands = [[sys.executable, __file__, "--inside", part, *sys.argv[1:]]]
    else:
        commands = SUITES[part](asked.processes)
    print(f"-- {part}", flush=True)
    for command in commands:
        left = asked.limit and asked.limit - (time.monotonic() - began)
        if outcome.ended or (asked.limit and left <= 0):
            outcome.ended = True
            break
        _run(command, left, outcome)
    outcome.seconds = time.monotonic() - began
    outcome.kernels = len(_kernels() - before)
    print(outcome, flush=True)  # all of them come again at the end, if there is one
    return outcome


def _run(command: list[str], limit: float | None, outcome: Outcome) -> None:
    """Run a command and hear what it says. At the limit it is interrupted, and killed where that is not enough."""
    paths = [str(ROOT / "src"), str(ROOT / "tests" / "gpu"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"
    }  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
    )  # fmt: skip

    def interrupt() -> None:
        outcome.ended = True
        process.send_signal(signal.SIGINT)

    timers = []
    if limit is not None:
        timers = [threading.Timer(limit, interrupt), threading.Timer(limit + GRACE, _kill, (process,))]
    for timer in timers:
        timer.start()
    known = len(outcome.failed)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            outcome.hear(line)
        process.wait()
    finally:
        for timer in timers:
            timer.cancel()
        if process.poll() is None:
            _kill(process)
    if process.returncode and not outcome.ended and len(outcome.failed) == known:
        outcome.failed.append(f"{' '.join(command[1:])}: exit status {process.returncode}")


def _kill(process: subprocess.Popen[str]) -> None:
    """A command, and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _kernels() -> set[str]:
    """The files of the kernels that are compiled already."""
    folder = configuration.kernel_cache()
    with suppress(OSError):
        return {name for name in os.listdir(folder) if name.endswith(".cubin")} if folder else set()
    return set()


def _no_gpu() -> str | None:
    """Why nothing can be run here; None where it can."""
    try:
        return why_not() or (None if flambeau.cuda.device_count() else "the NVIDIA driver finds none")
    except RuntimeError as error:
        return str(error)


def inside(part: str, asked: argparse.Namespace) -> int:
    """Run a part in this process: how much failed."""
    arguments = (asked.processes, asked.only) if part == "operators" else ()
    try:
        return INSIDE[part](*arguments)
    except KeyboardInterrupt:
        return 0  # the limit: what was found is said
    finally:
        for problem in system.close_all():
            print("at close:", problem)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Try Flambeau on this machine's NVIDIA GPUs.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join([*INSIDE, *SUITES])}; all, if none is named")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="that a part may take")
    parser.add_argument("-n", type=int, dest="processes", metavar="PROCESSES", help="that a part may use")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="operators, by their names"
    )
    parser.add_argument("--inside", metavar="PART", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = {*asked.parts} - {*INSIDE, *SUITES}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join([*INSIDE, *SUITES])}")
    return asked


def main() -> int:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs, and their own, ignore it
    asked = _asked()
    if asked.inside:
        return int(inside(asked.inside, asked) != 0)
    why = _no_gpu()
    if why:
        print(f"no GPU here, nothing was run: {why}")
        return 2
    count, kernels = flambeau.cuda.device_count(), _kernels()
    print(
        f"{count} x {flambeau.cuda.get_device_name(0)}; {len(kernels)} kernels in {configuration.kernel_cache()}"
    )
    if count == 1 and {*asked.parts} & {"examples", "pair"}:
        print("one GPU alone: what needs two is skipped, or has one rank")
    outcomes = [run_part(part, asked) for part in asked.parts or [*INSIDE, *SUITES]]
    print("", *outcomes, sep="\n")
    return int(any(outcome.failed or outcome.ended for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
