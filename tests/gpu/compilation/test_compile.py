"""Every source that random kernels, scans and counts generate compiles for sm_90: NVRTC needs no GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from flambeau.core.device import device
from flambeau.core.dtype import DTYPES, bool_, dtype, float16, float32, float64, int64, uint8
from flambeau.core.errors import DriverError
from flambeau.core.meta import Meta
from flambeau.core.random import DrawGrid
from flambeau.driver.protocol import Expression, Kernel, Launch, Scan, Source
from flambeau.ops.op import Op, table
from flambeau.ops.random import random
from flambeau.ops.random.dropout import native_dropout
from flambeau.ops.random.gamma import standard_gamma
from flambeau.ops.reduce import scan


def installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if not installed("cuda.bindings.nvrtc") or not installed("nvidia.cu13"):
    pytest.skip("NVRTC is not installed", allow_module_level=True)

from compiling import compile_all  # noqa: E402

from flambeau.driver.cuda.codegen import pointwise, source  # noqa: E402
from flambeau.driver.cuda.codegen import scan as scans  # noqa: E402
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan  # noqa: E402
from flambeau.driver.cuda.device.compiler import Compiler  # noqa: E402
from flambeau.driver.cuda.device.program import KernelProgram  # noqa: E402
from flambeau.driver.cuda.index import histogram, sorting  # noqa: E402

GPU = device("cuda", 0)
H100: Any = SimpleNamespace(properties=SimpleNamespace(multi_processor_count=132))
FEW = (float32, float64, float16, int64, uint8, bool_)


def kinds(op: Op) -> list[dtype]:
    """All dtypes of an operator in the exhaustive profile, else those that differ most."""
    chosen = DTYPES if os.environ.get("FLAMBEAU_TESTS") == "exhaustive" else FEW
    return [d for d in op.dtypes if d in chosen]


def meta(shape: tuple[int, ...], strides: tuple[int, ...], kind: dtype) -> Meta:
    return Meta.of(shape, strides, kind, GPU)


def launched(kernel: Kernel, op: Op, operands: tuple[Meta, ...], params: tuple[Any, ...]) -> Launch:
    signature = op.rule(operands, params)
    return Launch(kernel, signature.outputs, signature.inputs, signature.params)


def programs(built: KernelProgram | KernelPlan) -> list[KernelProgram]:
    return [step.program for step in built.passes] if isinstance(built, KernelPlan) else [built]


@pytest.mark.parametrize("kind", native_dropout.dtypes, ids=lambda kind: kind.name)
def test_dropout(kind: dtype) -> None:
    x = meta((20, 30), (1, 20), kind)
    signature = native_dropout.rule((x, int, int, float), (DrawGrid(132, 2048),))
    launch = Launch(native_dropout.kernel, signature.outputs, signature.inputs, signature.params)
    form = native_dropout.kernel.cuda
    assert isinstance(form, Source)
    compile_all(programs(source.program(launch, form)))


RANDOM = (
    random.uniform, random.normal, random.integers, random.bernoulli, random.exponential, random.cauchy,
    random.geometric, random.log_normal,
)  # fmt: skip


@pytest.mark.parametrize("op", RANDOM, ids=lambda op: op.name)
def test_random(op: Op) -> None:
    form = op.kernel.cuda
    assert isinstance(form, Source)
    metas = [meta((1000,), (1,), kind) for kind in kinds(op)] + [meta((10, 20), (7, 100), float32)]
    launches = [launched(op.kernel, op, (), (out, DrawGrid(132, 2048))) for out in metas]
    compile_all([p for launch in launches for p in programs(source.program(launch, form))])


@pytest.mark.parametrize("op", (random.poisson, standard_gamma), ids=lambda op: op.name)
def test_numbers_by_rejection(op: Op) -> None:
    form = op.kernel.cuda
    assert isinstance(form, Source)
    metas = [meta((1000,), (1,), kind) for kind in kinds(op)]
    launches = [launched(op.kernel, op, (out,), (out, DrawGrid(132, 2048))) for out in metas]
    compile_all([p for launch in launches for p in programs(source.program(launch, form))])


# One row over many blocks; rows of few threads, of a block, of several tiles; columns; strides; more than 2^31 apart.
LAYOUTS = [
    ((1 << 20,), (1,), 0),
    ((5000, 9), (9, 1), 1),
    ((50, 3000), (3000, 1), 1),
    ((30_000, 9000), (9000, 1), 1),
    ((400, 300), (300, 1), 0),
    ((30, 90), (1, 30), 1),
    ((), (), 0),
    ((3, 100, 4), (1 << 33, 4, 1), 1),
]


@pytest.mark.parametrize(
    "op", (scan.cumsum, scan.cumprod, scan.cummax, scan.cummin, scan.logcumsumexp), ids=lambda op: op.name
)
def test_scans(op: Op) -> None:
    form = op.kernel.cuda
    assert isinstance(form, Scan)
    cases = [(LAYOUTS[0], kind) for kind in kinds(op)] + [(layout, float32) for layout in LAYOUTS[1:]]
    launches = [
        launched(op.kernel, op, (meta(shape, strides, kind),), (dim, None))
        for (shape, strides, dim), kind in cases
    ]
    compile_all([p for launch in launches for p in programs(scans.program(launch, form, 132))])


@pytest.mark.parametrize("bins", [10, 100_000])
def test_counts(bins: int) -> None:
    places, weights = meta((50, 2), (3, 1), int64), meta((50, 2), (2, 1), float32)
    built = [
        histogram.bincount(launched(scan.bincount.kernel, scan.bincount, operands, (bins,)), H100)
        for operands in ((places,), (places, weights))
    ]
    for kind, end in ((float32, float), (float64, float), (uint8, int), (int64, int)):
        x = meta((100,), (2,), kind)
        built.append(histogram.histc(launched(scan.histc.kernel, scan.histc, (x, end, end), (bins,)), H100))
    compile_all([p for plan in built for p in programs(plan)])


def test_kernels_are_called_after_operators() -> None:
    """Profilers show the names: an operator and its dtype, or what a pass of several operators does."""
    x = meta((30,), (1,), float32)
    launch = launched(table["add"].kernel, table["add"], (x, x), (float32,))
    form = table["add"].kernel.cuda
    assert isinstance(form, Expression)
    name, source = pointwise.program(launch, form).name_and_source(launch)
    assert name == "add_float32"
    assert b"add_float32" in Compiler("sm_90", None).cubin(source)
    rows = meta((40_000,), (1,), float32)
    passes = sorting.sort(launched(table["sort"].kernel, table["sort"], (rows,), (0, False)), H100)
    assert isinstance(passes, KernelPlan)
    names = [step.program.name_and_source(launch)[0] for step in passes.passes]
    assert {"radix_count", "radix_plan", "radix_sweep", "radix_settle"} < set(names)


@pytest.mark.parametrize("kind", (float32, float64, float16, uint8), ids=lambda kind: kind.name)
def test_a_few_of_long_rows(kind: dtype) -> None:
    op = table["topk"]
    metas = (
        meta((300, 5000), (5000, 1), kind),
        meta((1, 9000), (9000, 1), kind),
        meta((600, 700), (1, 600), kind),
    )
    launches = [launched(op.kernel, op, (x,), (8, 1, True)) for x in metas]
    compile_all([p for launch in launches for p in programs(sorting.sort(launch, H100))])


@pytest.mark.parametrize("more", ["", "// long\n"])
def test_one_that_does_not_compile_is_shown(more: str) -> None:
    """Among others of its name, and as the one that stands for itself."""
    right = [f'extern "C" __global__ void run(int* p) {{ *p = {n}; }}' for n in (1, 22, 333)]
    wrong = f'extern "C" __global__ void run(int* p) {{ *p = there; }}{more * 10}'
    with pytest.raises(DriverError, match='identifier "there" is undefined') as failed:
        compile_all(
            [KernelProgram(source, (1, 1, 1), 32) for source in (*right, wrong, f"{right[0]}// longer")]
        )
    assert "333" not in str(failed.value)
