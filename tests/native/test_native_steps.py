"""Expressions of several operators have the bits of the native bodies of their operators, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_kit import Array, launch_of, run

import flambeau
from flambeau.driver.host.kernels.native import bodies, expression_operators
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.ops.cache_blocks import BLOCK
from flambeau.ops.op import Op, table
from flambeau.ops.pointwise import expression
from flambeau.ops.pointwise.expression import Input, operator
from flambeau.testing.operator_properties import plain, tensor_of


def compute(library: KernelLibrary, op: Op, arrays: list[Any], native: bool) -> Array:
    launch = launch_of(op, [tensor_of(x, plain) if isinstance(x, np.ndarray) else x for x in arrays], ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "library", lambda: library)
        patch.setattr(expression, "native_code", lambda: bodies if native else None)
        body = bodies.native_body(launch) if native else None
        return run(body or launch.kernel.host(launch), launch, arrays)[0]


@pytest.mark.parametrize("size", [1, 7, 1030, BLOCK + 3])
def test_an_expression_has_the_bits_of_its_operators(size: int, library: KernelLibrary) -> None:
    a, b = Input(0), Input(1)
    together = operator("together", [(a.exp() * b + 2).where(a > b, -0.5 * (b * b).log1p())], 2)
    random = np.random.default_rng(size)
    x, y = (random.uniform(-3, 3, size).astype(np.float32) for _ in "xy")

    def one(name: str, *arrays: Any) -> Array:
        return compute(library, table[name], list(arrays), native=True)

    sums = one("add", one("mul", one("exp", x), y), 2.0)
    logs = one("mul", one("log1p", one("mul", y, y)), -0.5)
    found = compute(library, together, [x, y], native=True)
    np.testing.assert_array_equal(found, np.where(x > y, sums, logs))
    by_numpy = compute(library, together, [x, y], native=False)
    assert size < 1000 or not np.array_equal(found, by_numpy)  # NumPy's last bits differ
    np.testing.assert_allclose(found, by_numpy, rtol=1e-5, atol=1e-5)


def test_a_step_takes_arrays_of_any_layout_and_numbers(library: KernelLibrary) -> None:
    launch = launch_of(table["exp"], [flambeau.ones(2)], ())
    step = expression_operators.step(library, launch, launch.kernel.cuda)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    assert step is not None
    np.testing.assert_array_equal(step(x.T), step(x.T.copy()))
    assert step(np.float32(1)).shape == () and step(x[:0]).shape == (0, 6)
