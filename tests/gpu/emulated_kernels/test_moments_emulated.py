"""Variances, standard deviations and their means emulated: beside the host body, and where sums of squares would cancel."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.dtype import complex64, float32, float64
from flambeau.driver.protocol import Launch
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
NAMES = ("var", "std", "var_mean", "std_mean")


def launch_of(name: str, arrays: list[Any], params: Any) -> Launch:
    op = table[name]
    found = op.rule([emulated.meta_of(x, GPU) for x in arrays], params)
    return Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def of_rows(name: str, x: Any) -> list[Any]:
    return emulated.emulated(launch_of(name, [x], (1, False, None, 1)), [x])


@pytest.mark.parametrize("kind, near", ((float32, 1e-6), (float64, 1e-13), (complex64, 1e-6)), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str, kind: Any, near: float) -> None:
    op = table[name]
    for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
        launch = launch_of(name, list(inputs), params)
        for got, want in zip(
            emulated.emulated(launch, list(inputs)), emulated.of_host(launch, list(inputs)), strict=True
        ):
            np.testing.assert_allclose(got, want, near, near)


def test_nothing_cancels() -> None:
    normal = np.random.default_rng(0).standard_normal((4, 5000))
    far = normal + np.array(
        [[1e6], [-1e6], [1e-3], [0]]
    )  # as far from 0 as squares would lose all digits of a float
    outlier = normal.copy()
    outlier[:, 0] = 1e5  # what distances are counted from is not typical
    for x, near in ((far, 1e-10), (outlier, 1e-12)):
        got, mean = of_rows("var_mean", x)
        np.testing.assert_allclose(got, x.var(1, ddof=1), near)
        np.testing.assert_allclose(mean, x.mean(1), 1e-12, 1e-12)
    short = far.astype(np.float32)
    np.testing.assert_allclose(of_rows("var", short)[0], short.astype(np.float64).var(1, ddof=1), 1e-6)


def test_a_constant_has_no_variance_and_infinities_have_no_number() -> None:
    got, mean = of_rows("var_mean", np.full((2, 3000), 0.1, np.float32))
    assert got.tolist() == [0, 0] and mean.tolist() == [np.float32(0.1)] * 2
    x = np.zeros((4, 2000), np.float32)
    x[0, 0], x[1, 700], x[2, 1999], x[3, 5] = np.inf, -np.inf, np.inf, np.nan
    assert np.isnan(of_rows("var", x)[0]).all()


@pytest.mark.parametrize("count", (1, 2, 3, 31, 32, 33, 200_000))
def test_rows_of_any_length(count: int) -> None:
    x = np.random.default_rng(count).standard_normal((1, count)).astype(np.float32)
    (got,) = of_rows("var", x)
    want = x.astype(np.float64).var(1, ddof=1) if count > 1 else [np.nan]
    np.testing.assert_allclose(got, want, 1e-6)


@pytest.mark.parametrize("name", ("argmax", "argmin", "max", "min"))
def test_places_of_extremes_are_the_first(name: str) -> None:
    draw = np.random.default_rng(7)
    for shape, kind in (
        ((3, 5), np.float32),
        ((4, 300), np.float32),
        ((2, 5000), np.int32),
        ((300, 9), np.int8),
    ):
        x = draw.integers(-2, 3, shape).astype(kind)
        if kind is np.float32:
            x[0], x[1, 2:] = -np.inf, np.inf
            x[2, shape[1] // 2 :: 2] = np.nan
        launch = launch_of(name, [x], (1, False, None))
        for got, want in zip(emulated.emulated(launch, [x]), emulated.of_host(launch, [x]), strict=True):
            np.testing.assert_array_equal(got, want)
