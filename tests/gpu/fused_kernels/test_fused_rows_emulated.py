"""Fused kernels with reductions: their CUDA source gives the bits of separate kernels, in every layout of rows."""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from test_fused_emulated import Chain, of_layout, same_bits

import flambeau
from flambeau.ops.copy import copy
from flambeau.ops.op import table
from flambeau.ops.pointwise.fused_chains import fuse
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
SHAPES = ((3, 40), (2, 3, 97), (2, 1200), (5, 4, 2, 33))
REDUCTIONS = ("sum", "mean", "amax", "amin")


def rows_chain(shape: tuple[int, ...], kind: Any, choice: random.Random) -> Chain:
    """Return a random normalization: elements, reductions of them, results of rows, and elements again."""
    make = operator_properties.maker(kind, choice.randrange(99))
    x, other = make(*shape, low=0.2, high=3), make(*shape[-1:], low=0.2, high=3)
    strided = make(shape[0], 2 * int(np.prod(shape[1:])), low=0.2, high=3)[:, ::2].reshape(shape)
    row = make(*shape[:-1], 1, low=0.2, high=3)
    chain = Chain([x, other, strided, row])
    one = {"alone": emulated.emulated}
    elements, rows = [0], [3]
    reduced_kind = (
        flambeau.float32 if choice.random() < 0.5 else kind
    )  # groups hold reductions of one item size
    for _ in range(2):
        product = chain.run(table["mul"], choice.choice(elements), choice.choice([1, 2, 0.7]), **one)
        elements.append(product)
        if kind is not flambeau.float32:
            elements.append(chain.run(copy, product, params=(flambeau.float32, shape), **one))
        source = choice.choice([k for k in elements if chain.meta(k).dtype is reduced_kind])
        fold = chain.run(
            table[choice.choice(REDUCTIONS)], source, params=((len(shape) - 1,), True, None), **one
        )
        rows.append(chain.run(table["add"], fold, choice.choice([*rows, 0.5]), **one))
        elements.append(chain.run(table["sub"], choice.choice(elements), rows[-1], **one))
    return chain


def check(chain: Chain, stored: list[int], **how: Any) -> None:
    outputs = [chain.steps[k].launch.outputs[0] for k in stored]
    launch = fuse(chain.steps, chain.inputs, stored, outputs, True).with_(capability=(9, 0))
    for got, k in zip(emulated.emulated(launch, chain.values, **how), stored, strict=True):
        same_bits(got, chain.results[k], launch.kernel.name)
    for got, k in zip(of_layout(launch, chain.values), stored, strict=True):
        assert got.dtype == chain.results[k].dtype


@pytest.mark.parametrize("at", range(len(SHAPES)))
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_random_rows_equal_separate_kernels(kind: str, at: int) -> None:
    choice = random.Random(f"{kind} {at}")
    shape = SHAPES[at]
    chain = rows_chain(shape, getattr(flambeau, kind), choice)
    last = len(chain.steps) - 1
    folds = [s.sources[0] for s in chain.steps if s.launch.kernel.name in REDUCTIONS]
    tight = at % 2 == 1 and max(folds) < 0  # the order in which an input is added depends on its address
    check(chain, sorted({last, last - 1, *choice.sample(range(last), 2)}), tight=tight)


def test_row_output_may_overwrite_the_reduced_input() -> None:
    make = operator_properties.maker(flambeau.float32, 7)
    chain = Chain([make(3, 70)])
    one = {"alone": emulated.emulated}
    mean = chain.run(table["mean"], 0, params=((1,), True, None), **one)
    chain.run(table["sub"], 0, mean, **one)
    launch = fuse(chain.steps, chain.inputs, [1], [chain.metas[0]], True).with_(capability=(9, 0))
    (got,) = emulated.emulated(launch, chain.values, into={0: 0})
    same_bits(got, chain.results[1], launch.kernel.name)
