"""The kernels of cross products, distances and their gradients emulated beside the host bodies. No GPU needed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.driver.protocol import Launch
from flambeau.ops.linalg.geometry import cdist, cdist_backward, cross
from flambeau.ops.op import Op
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)


def check(op: Op, arrays: list[Any], params: Any, tight: bool = True) -> None:
    found = op.rule([emulated.meta_of(x, GPU) for x in arrays], params)
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    arrays = [np.broadcast_to(x, m.shape) for x, m in zip(arrays, found.inputs, strict=True)]
    for order in (0, 1):
        (got,), (want,) = (
            emulated.emulated(launch, arrays, tight, order),
            emulated.of_host(launch, arrays),
        )
        near = 1e-12 if want.dtype == np.float64 else 2e-5
        np.testing.assert_allclose(got, want, near, near * max(1, np.abs(want).max(initial=0)))


@pytest.mark.parametrize("op", (cross, cdist, cdist_backward), ids=lambda op: op.name)
def test_samples(op: Op) -> None:
    for inputs, params in op.samples(operator_properties.maker(flambeau.float64, 0), flambeau.float64):
        check(op, list(inputs), params)
        check(op, [operator_properties.reversed_dims(x)[1] for x in inputs], params, tight=False)
    inputs, params = next(iter(op.samples(operator_properties.maker(flambeau.float32, 0), flambeau.float32)))
    check(op, list(inputs), params)


@pytest.mark.parametrize("shape", ((70, 35, 3), (9, 50, 70), (3, 17, 33)))
@pytest.mark.parametrize("p", (2.0, math.inf))
def test_gradients_of_distances(p: float, shape: tuple[int, int, int]) -> None:
    """More rows and columns than a block has, equal rows, and a gradient that is a view."""
    rows, others, width = shape
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (rows, width)), rng.uniform(-1, 1, (others, width))
    b[0] = a[0]
    found = cdist.rule([emulated.meta_of(x, GPU) for x in (a, b)], (p,))
    (lengths,) = emulated.of_host(Launch(cdist.kernel, found.outputs, found.inputs, found.params), [a, b])
    grad = rng.uniform(-1, 1, (others, rows)).T
    check(cdist_backward, [grad, a, b, lengths], (p,))


def test_no_rows() -> None:
    a, b = np.ones((3, 2)), np.ones((0, 2))
    check(cdist_backward, [np.ones((3, 0)), a, b, np.ones((3, 0))], (2.0,))
