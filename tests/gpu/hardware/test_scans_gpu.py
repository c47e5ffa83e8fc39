"""Scans and counts on a real GPU against the CPU's bodies, over layouts, and the same bits each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, needs_gpu, numbers, same

import flambeau as torch
from flambeau.core.dtype import (
    bfloat16,
    bool_,
    complex64,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = needs_gpu

# A row of few elements; of a warp; of a block; of several tiles; one row over many blocks; columns; both.
SHAPES = [
    ((7,), 0), ((130,), 0), ((5000,), 0), ((1_000_003,), 0), ((900, 5), 1), ((700, 33), 1), ((64, 4097), 1),
    ((1200, 9001), 1), ((3, 50_000), 1), ((500, 40), 0), ((1000, 3), 0), ((6, 70, 33), 1), ((), 0), ((1,), 0),
]  # fmt: skip
LAYOUTS = (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)


@pytest.mark.parametrize("kind", (uint8, int8, int32, int64, bool_), ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ("cumsum", "cumprod", "cummax", "cummin"))
def test_whole_numbers_have_the_cpus_bits(name: str, kind: dtype) -> None:
    for shape, dim in SHAPES:
        x = numbers(kind, int(np.prod(shape))).reshape(shape)
        for layout in LAYOUTS if x.size < 100_000 and x.ndim else LAYOUTS[:1]:
            same(name, (x,), (dim, None), layout)


@pytest.mark.parametrize("kind", (float16, bfloat16, float32, float64), ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ("cummax", "cummin"))
def test_extremes_of_floats_have_the_cpus_bits(name: str, kind: dtype) -> None:
    for shape, dim in SHAPES:
        same(name, (numbers(kind, int(np.prod(shape))).reshape(shape),), (dim, None))


ERROR = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-22,
    "float64": 2.0**-50,
    "complex64": 2.0**-21,
}
RUNNING = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "logcumsumexp": lambda x, axis: np.log(np.cumsum(np.exp(x), axis)),
}


@pytest.mark.parametrize("kind", (float16, bfloat16, float32, float64, complex64), ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", tuple(RUNNING))
def test_sums_of_floats(name: str, kind: dtype) -> None:
    """Sums are taken as a tree: positive terms lose a few bits. Each factor of a product adds a rounding."""
    if kind not in table[name].dtypes:
        return
    random = np.random.default_rng(3)
    for shape, dim in SHAPES:
        x = random.uniform(0.5, 1.0, shape)
        if name == "cumprod" and x.ndim:
            x = np.where(
                np.indices(shape)[dim] % 2 == 0, x, 1 / np.roll(x, 1, dim)
            )  # products stay in [0.5, 2]
        given = torch.from_numpy(np.asarray(x)).to(kind)
        wide = given.to(torch.complex128 if kind.is_complex else torch.float64).numpy()
        exact = np.atleast_1d(wide).astype(np.complex256 if kind.is_complex else np.longdouble)
        want = RUNNING[name](exact, axis=dim).reshape(shape).astype(wide.dtype)
        got = getattr(torch, name)(given.to(GPU), dim).cpu()
        got = got.to(torch.complex128 if kind.is_complex else torch.float64).numpy()
        length = shape[dim] if shape else 1
        sums = np.log2(length + 1) * (4 if name == "logcumsumexp" else 1)
        terms = length / 4 if name == "cumprod" else sums
        held = np.abs(want) < 60_000 if kind is float16 else np.ones(shape, bool)
        np.testing.assert_allclose(got[held], want[held], rtol=ERROR[kind.name] * max(terms, 1))


def test_nan_and_infinities() -> None:
    x = np.ones(3_000_000, np.float32)
    x[2_000_000] = np.nan
    got = torch.tensor(x).to(GPU).cumsum(0).cpu().numpy()
    assert not np.isnan(got[:2_000_000]).any() and np.isnan(got[2_000_000:]).all()
    x = np.array([-np.inf, -np.inf, 0, np.inf, 1], np.float32)
    got = torch.logcumsumexp(torch.tensor(x).to(GPU), 0).cpu().numpy()
    np.testing.assert_array_equal(got, np.array([-np.inf, -np.inf, 0, np.inf, np.inf], np.float32))


@pytest.mark.parametrize("shape", [(5_000_000,), (3, 2_000_000), (3000, 4000)])
def test_same_bits_each_time(shape: tuple[int, ...]) -> None:
    torch.cuda.manual_seed(1)
    x = torch.randn(shape, device=GPU)
    first = x.cumsum(-1).cpu().numpy()
    for _ in range(20):
        assert (x.cumsum(-1).cpu().numpy() == first).all()


def test_another_dtype_is_converted_first() -> None:
    x = np.array([1.7, 2.9, -3.5], np.float32)
    same("cumsum", (x,), (0, int32))
    same("cumsum", (x,), (0, float16))
    same("cumsum", (x,), (0, bool_))


# -- counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", (7, 5000, 100_000))
def test_bincount(bins: int) -> None:
    random = np.random.default_rng(1)
    for count in (0, 1, 1000, 3_000_000):
        x = random.integers(0, bins, count)
        same("bincount", (x,), (bins,))
        same("bincount", (x.astype(np.int32), np.ones(count, np.float32)), (bins,))


@pytest.mark.parametrize("kind", (float32, float64), ids=lambda kind: kind.name)
def test_histc(kind: Any) -> None:
    random = np.random.default_rng(1)
    for count in (0, 1, 1000, 2_000_000):
        x = random.standard_normal(count).astype(kind.numpy)
        for bins, *ends in ((10, -1.0, 1.5), (10_000, -3.0, 3.0)):
            same("histc", (x, *ends), (bins,))
    same("histc", (np.array([np.nan, 1.0, 2.0], kind.numpy), 0.0, 3.0), (4,))


@pytest.mark.parametrize("kind", (uint8, int8, int16, int32, int64), ids=lambda kind: kind.name)
def test_histc_of_integers(kind: Any) -> None:
    """CPUs take none: beside NumPy's, whose bins are those of the exact quotients."""
    x = numbers(kind, 10_000)
    low, high = int(x.min()), int(x.max())
    wide = x.astype(object)
    want = np.bincount([min((v - low) * 7 // (high - low), 6) for v in wide.tolist()], minlength=7)
    if (high - low) * 7 < 1 << 63:
        got = torch.tensor(x).to(GPU).histc(7)
        assert got.tolist() == torch.tensor(want).to(kind).tolist()
