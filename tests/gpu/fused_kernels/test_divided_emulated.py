"""Operators that compiled functions divide into parts: the parts, fused, have the bits of the operators' kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from test_fused_emulated import Chain, same_bits
from test_fused_rows_emulated import check

import flambeau
from flambeau.driver.protocol import Launch
from flambeau.ops.nn.loss import count_targets, nll_slope
from flambeau.ops.op import Op, table
from flambeau.ops.reduce.softmax_gradients import log_softmax_slope, sum_of_gradient
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
ONE: dict[str, Any] = {"alone": emulated.emulated}


def alone(op: Op, arrays: list[Any], params: tuple[Any, ...]) -> Any:
    """Return the result of an operator's separate kernel."""
    found = op.rule([emulated.meta_of(x, GPU) for x in arrays], params)
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    return emulated.emulated(launch, arrays)[0]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 33), (3, 64)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_of_cross_entropy_equals_separate_kernels(
    kind: str, shape: tuple[int, int], reduction: str
) -> None:
    make = operator_properties.maker(getattr(flambeau, kind), 0)
    grad, scores, target = (
        make(low=1, high=2),
        make(*shape, low=-3, high=0),
        np.arange(shape[0]) * 7 % shape[1],
    )
    target[1] = -100
    chain = Chain([grad, target[:, None], scores, target])
    wide = getattr(flambeau, kind)
    counts = []
    if reduction == "mean":
        chain.arrays.append(alone(count_targets, [target], (-100, wide)))
        chain.metas.append(emulated.meta_of(chain.arrays[-1], GPU))
        counts = [4]
    slope = chain.run(nll_slope, 0, 1, *counts, params=(-100, shape), **ONE)
    want = alone(table["nll_loss_backward"], [grad, target], (reduction, -100, shape))
    same_bits(chain.results[-1], want, "nll_slope")

    total = chain.run(sum_of_gradient, slope, params=(1,), **ONE)
    result = chain.run(log_softmax_slope, slope, 2, total, **ONE)
    check(chain, [-1 - result])
    check(chain, [-1 - slope, -1 - result], tight=True)


@pytest.mark.parametrize("shape", [(5, 33), (3, 64)])
def test_gradient_of_held_rows_computes_gradient_of_loss(shape: tuple[int, int]) -> None:
    make = operator_properties.maker(flambeau.float32, 0)
    chain = Chain(
        [make(), np.arange(shape[0])[:, None], make(*shape, low=-3, high=0), make(*shape)[:, ::-1].copy()]
    )
    slope = chain.run(nll_slope, 0, 1, params=(2, shape), **ONE)
    back = chain.run(table["log_softmax_backward"], slope, 2, params=(1,), **ONE)
    last = chain.run(table["mul"], back, 0.5, **ONE)
    chain.check([-1 - last])


@pytest.mark.parametrize("layout", ["dense", "strided", "permuted"])
def test_index_of_an_element_is_row_major(layout: str) -> None:
    make = operator_properties.maker(flambeau.float32, 0)
    other = {"dense": make(6, 8), "strided": make(6, 16)[:, ::2], "permuted": make(8, 6).T}[layout]
    chain = Chain([make(), np.arange(6)[:, None], other])
    slope = chain.run(nll_slope, 0, 1, params=(2, (6, 8)), **ONE)
    last = chain.run(table["mul"], 2, slope, **ONE)
    chain.check([-1 - last, -1 - chain.run(table["sub"], last, slope, **ONE)])
