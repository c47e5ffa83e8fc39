"""Fused kernels with dropout: the CUDA source draws for each element the number that the separate kernel draws."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from test_fused_emulated import Chain
from test_fused_rows_emulated import check

import flambeau
from flambeau.core.random import DrawGrid
from flambeau.driver.protocol import Launch
from flambeau.ops.op import table
from flambeau.ops.random.dropout import dropout_mask, dropout_scale, native_dropout
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
GRIDS = (DrawGrid(132, 2048), DrawGrid(1, 256))  # one draw of a thread, and several
SEED, OFFSET = np.uint64(2**40 + 9), np.uint64(24)
ONE = {"alone": emulated.emulated}


def drop(chain: Chain, source: int, grid: DrawGrid, keep: float) -> int:
    """Add the two operators of dropout, and check them against the separate kernel. Returns the result's number."""
    x = chain.meta(source)
    mask = chain.run(dropout_mask, SEED, OFFSET, keep, params=(x, grid), **ONE)
    dropped = chain.run(dropout_scale, source, mask, keep, **ONE)
    found = native_dropout.rule((x, int, int, float), (grid,))
    launch = Launch(native_dropout.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    want = emulated.emulated(launch, [chain.value(source, x), SEED, OFFSET, keep])
    for got, expected in zip((chain.results[-1], chain.results[-2]), want, strict=True):
        assert got.tobytes() == np.ascontiguousarray(expected).tobytes()
    return dropped


@pytest.mark.parametrize("grid", GRIDS, ids=["wide", "narrow"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(3, 40), (2, 700), (5, 7)])
def test_dropout_of_a_chain_equals_separate_kernels(
    kind: str, shape: tuple[int, ...], grid: DrawGrid
) -> None:
    make = operator_properties.maker(getattr(flambeau, kind), 0)
    chain = Chain([make(*shape), make(shape[1]), make(shape[0], 2 * shape[1])[:, ::2]])
    product = chain.run(table["mul"], 0, 1, **ONE)
    dropped = drop(chain, product, grid, 0.7)
    chain.check([-1 - dropped, -2 - chain.run(table["add"], dropped, 0, **ONE)])  # one layout, and the mask
    last = chain.run(table["mul"], drop(chain, dropped, grid, 0.4), 2, **ONE)
    chain.check([-1 - last], tight=True, order=1)


@pytest.mark.parametrize("grid", GRIDS, ids=["wide", "narrow"])
@pytest.mark.parametrize("shape", [(3, 40), (2, 1200), (4, 33)])
def test_dropout_of_rows_equals_separate_kernels(shape: tuple[int, ...], grid: DrawGrid) -> None:
    make = operator_properties.maker(flambeau.float32, 0)
    reduced: dict[str, Any] = {"params": ((1,), True, None), **ONE}
    chain = Chain([make(*shape)])
    mean = chain.run(table["mean"], drop(chain, 0, grid, 0.6), **reduced)
    last = chain.run(table["sub"], -2, drop(chain, mean, grid, 0.5), **ONE)
    check(chain, [-1 - last])

    soft = Chain([make(*shape)])
    scaled = drop(soft, 0, grid, 0.9)
    dropped = drop(soft, soft.run(table["softmax"], scaled, params=(-1, None), **ONE), grid, 0.8)
    soft.check([-1 - dropped], tight=True)
