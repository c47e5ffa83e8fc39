"""The norms of several tensors: their kernels emulated beside the host body."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.driver.protocol import Launch
from flambeau.ops.multi_tensor.foreach_norm import foreach_norm
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)


def check(arrays: list[Any], order: float, near: float) -> None:
    found = foreach_norm.rule([emulated.meta_of(x, GPU) for x in arrays], (order,))
    launch = Launch(foreach_norm.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    (got,), (want,) = emulated.emulated(launch, arrays), emulated.of_host(launch, arrays)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)


@pytest.mark.parametrize("kind, near", (("float32", 1e-5), ("float64", 1e-13), ("bfloat16", 1e-2)))
@pytest.mark.parametrize("layout", ("plain", "reversed_dims", "with_gaps"))
def test_the_hosts_values_to_rounding(kind: str, near: float, layout: str) -> None:
    for inputs, (order,) in foreach_norm.samples(
        operator_properties.maker(getattr(flambeau, kind), 0), getattr(flambeau, kind)
    ):
        check([getattr(operator_properties, layout)(x)[1] for x in inputs], order, near)


def test_tensors_of_many_blocks_and_of_no_elements() -> None:
    make = operator_properties.maker(flambeau.float32, 2)
    check([make(40_000), make(0), make(3), make(70_001), make(1)], 2.0, 1e-5)
    check([make(40_000), make(0)], float("inf"), 0)


def test_nan_and_infinity_pass() -> None:
    for order in (1.0, 2.0, float("inf")):
        check([np.array([1, np.nan, 2], np.float32), np.array([np.inf, 1], np.float32)], order, 0)
