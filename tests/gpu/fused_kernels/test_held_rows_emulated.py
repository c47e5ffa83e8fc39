"""Fused kernels whose threads hold rows: softmax, its gradients and normalization have the bits of separate kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from test_fused_emulated import Chain

import flambeau
from flambeau.ops.copy import copy
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")


def fill(*shape: int, kind: str, seed: int = 0) -> Any:
    return operator_properties.maker(getattr(flambeau, kind), seed)(*shape, low=-3, high=3)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(3, 40), (5, 7), (2, 3, 264), (1, 1), (300, 8)])
def test_softmax_of_a_chain_equals_separate_kernels(name: str, kind: str, shape: tuple[int, ...]) -> None:
    x, row = fill(*shape, kind=kind), fill(shape[-1], kind=kind, seed=1)
    strided = fill(*shape[:-1], 2 * shape[-1], kind=kind, seed=2)[..., ::2]
    chain = Chain([x, row, strided])
    one = {"alone": emulated.emulated}
    scaled = chain.run(table["mul"], 0, 1, **one)
    soft = chain.run(table[name], scaled, params=(-1, None), **one)
    shifted = chain.run(table["add"], soft, 2, **one)
    last = chain.run(table["mul"], shifted, scaled, **one)
    chain.check([-1 - last])
    chain.check([-1 - scaled, -1 - soft, -1 - last], tight=True, order=1)


def test_softmax_that_converts() -> None:
    chain = Chain([fill(4, 24, kind="float16")])
    one = {"alone": emulated.emulated}
    soft = chain.run(table["softmax"], 0, params=(-1, flambeau.float32), **one)
    chain.run(copy, soft, params=(flambeau.bfloat16, (4, 24)), **one)
    chain.check([0, 1])
    chain.check([1], tight=True)


def test_row_of_infinities_is_nan_as_in_the_separate_kernel() -> None:
    x = np.full((2, 12), -np.inf, np.float32)
    x[0, 3] = 1
    chain = Chain([x])
    one = {"alone": emulated.emulated}
    chain.run(
        table["mul"],
        chain.run(table["softmax"], chain.run(table["mul"], 0, 2.0, **one), params=(-1, None), **one),
        3.0,
        **one,
    )
    assert np.isnan(chain.results[-1][1]).all()
    chain.check([len(chain.steps) - 1])


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(3, 40), (5, 7), (2, 3, 264)])
def test_normalization_of_a_sum_equals_separate_kernels(name: str, kind: str, shape: tuple[int, ...]) -> None:
    weight, bias = fill(shape[-1], kind=kind, seed=1), fill(2 * shape[-1], kind=kind, seed=2)[::2]
    chain = Chain([fill(*shape, kind=kind), fill(*shape, kind=kind, seed=3), weight, bias])
    one = {"alone": emulated.emulated}
    total = chain.run(table["add"], 0, 1, **one)
    rows = [2, 3] if name == "layer_norm" else [2]
    norm = chain.run(table[name], total, *rows, params=(1, 1e-5, (True, name == "layer_norm")), **one)
    last = chain.run(table["mul"], norm, total, **one)
    chain.check([-1 - last])
    chain.check([-1 - total, -1 - norm, -1 - last], tight=True, order=1)


@pytest.mark.parametrize("name", ["softmax_backward", "log_softmax_backward"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 40), (5, 7), (2, 3, 264)])
def test_gradient_of_softmax_equals_separate_kernels(name: str, kind: str, shape: tuple[int, ...]) -> None:
    chain = Chain([fill(*shape, kind=kind), fill(*shape, kind=kind, seed=3), fill(*shape, kind=kind, seed=4)])
    one = {"alone": emulated.emulated}
    scaled = chain.run(table["mul"], 0, 2, **one)
    back = chain.run(table[name], scaled, 1, params=(-1,), **one)
    last = chain.run(table["mul"], back, 0.125, **one)
    chain.check([-1 - last])
    chain.check([-1 - scaled, -1 - last], tight=True, order=1)
