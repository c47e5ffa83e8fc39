"""`topk` of long rows, elements of a rank, and the radix sort, emulated beside the host body."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan
from flambeau.driver.protocol import Launch
from flambeau.ops.op import table

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)


def check(name: str, x: Any, params: tuple[Any, ...], order: int = 0, tight: bool = False) -> Any:
    """The emulated results are the host's, to the order of equals. Returns what was built."""
    op = table[name]
    found = op.rule([emulated.meta_of(x, GPU)], params)
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    got = emulated.emulated(launch, [x], tight=tight, order=order)
    for a, b in zip(got, emulated.of_host(launch, [x]), strict=True):
        assert a.tobytes() == b.tobytes()
    return emulated.built(launch, emulated.Device())


def rows(kind: str, *shape: int) -> Any:
    return (np.random.default_rng(shape[-1]).standard_normal(shape) * 50).astype(kind)


@pytest.mark.parametrize("length", (512, 1025, 4096, 4097))
@pytest.mark.parametrize("kind", ("float32", "float16", "int64"))
def test_a_few_of_long_rows(kind: str, length: int) -> None:
    x = rows(kind, 17, length)
    for order, (kept, largest) in enumerate(((1, True), (8, False), (120, True))):
        check("topk", x, (kept, 1, largest), order)


def test_rows_that_are_hard_to_choose_from() -> None:
    x = np.zeros((17, 9000), np.float32)  # rows of one value: the first places are wanted
    x[1], x[2] = np.arange(9000), -np.arange(9000)  # every part has better ones than all before; none has
    x[3, ::7], x[4, 8990:], x[5, :40] = np.nan, np.nan, -np.inf
    x[6] = np.arange(9000) // 64  # a thread's neighbours are alike
    x[7, 5:9] = -0.0
    for kept in (8, 120):
        for largest in (True, False):
            check("topk", x, (kept, 1, largest))


def test_few_rows_are_shared_by_blocks() -> None:
    x = rows("float32", 1, 70_000)
    assert isinstance(check("topk", x, (50, 1, True)), KernelPlan)
    check("topk", np.zeros(70_000, np.float32), (3, 0, True), 1)
    assert isinstance(check("topk", rows("float64", 2, 9000), (120, 1, False)), KernelPlan)


def test_layouts() -> None:
    x = rows("float32", 700, 40)
    check("topk", x, (5, 0, True))
    check("topk", x[::1, ::-1].copy()[:, ::3], (5, 0, True))
    check("topk", rows("float32", 6, 2003)[:, 3:], (9, 1, True), tight=True)


@pytest.mark.parametrize("kind", ("float32", "int64"))
def test_long_rows_are_sorted_by_digits(kind: str) -> None:
    assert isinstance(check("sort", rows(kind, 2, 5000), (1, True)), KernelPlan)


RANKED = ("kthvalue", "median", "nanmedian", "median_all", "nanmedian_all", "mode")
KINDS = ("float32", "float16", "float64", "int8", "uint8", "int64", "bool")


def mixed(kind: str, *shape: int, seed: int = 0) -> Any:
    """Return few different values, so that many are equal; of floats also NaN, infinities and both zeros."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 2 if kind == "bool" else 9, shape).astype(kind)
    if x.dtype.kind == "f":
        x[...] = np.where(random.random(shape) < 0.5, x, random.standard_normal(shape))
        for value in (np.nan, np.inf, -np.inf, -0.0):
            x[random.random(shape) < 0.02] = value
    return x


@pytest.mark.parametrize("name", RANKED)
def test_elements_of_a_rank(name: str) -> None:
    kinds = [kind for kind in KINDS if getattr(flambeau, kind) in table[name].dtypes]
    shapes = [(67, 3), (3, 300)]  # a block sorts several rows; a block selects from a row, but for modes
    if name == "kthvalue":
        shapes += [(9, 1), (5, 255), (2, 1500), (1, 9000)]
    for index, shape in enumerate(shapes):
        for order, x in enumerate((mixed(kinds[index], *shape), descending(mixed(kinds[index], *shape)))):
            ranks = {1, shape[1], (shape[1] + 1) // 2} if name == "kthvalue" else {None}
            for rank in ranks:
                params = (None if name.endswith("all") else 1, False, None, *((rank,) if rank else ()))
                check(name, x, params, order)


def descending(x: Any) -> Any:
    x = np.ascontiguousarray(np.sort(x, axis=1)[:, ::-1])
    if x.dtype.kind == "f":
        x[np.isnan(x)] = np.nan  # sorts of halves change the bits of NaN
    return x


def test_elements_of_a_rank_along_other_dimensions() -> None:
    x = mixed("float32", 3, 300, 4)
    check("kthvalue", x, (1, True, None, 100))
    check("median_all", x, (None, False, None))
    check("mode", mixed("int64", 40, 6), (0, True, None))


def test_elements_of_a_rank_of_a_very_long_row() -> None:
    x = mixed("float16", 1, 33_000)
    check("nanmedian", x, (1, False, None))
    for row in (x, np.where(np.isnan(x), np.float16(0), x)):
        check("median", row, (1, False, None))


@pytest.mark.parametrize("length", (1, 7, 200, 1500, 2500))
def test_quantiles_of_rows(length: int) -> None:
    op = table["quantile"]
    for index, skip in enumerate((False, True)):
        x, levels = mixed("float64" if index else "float32", 3, length), np.array([0, 0.3, 1])
        inputs = [x, levels.astype(x.dtype)]
        for interpolation in ("linear", "nearest"):
            found = op.rule([emulated.meta_of(a, GPU) for a in inputs], (1, index == 1, interpolation, skip))
            launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
            got, want = emulated.emulated(launch, inputs), emulated.of_host(launch, inputs)
            np.testing.assert_array_equal(got[0], want[0])  # the sign of a zero is free
