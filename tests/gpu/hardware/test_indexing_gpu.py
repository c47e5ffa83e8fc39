"""Indexing on a real GPU: the CPU's bits, and late errors that name the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, finite, in_fresh_process, needs_gpu, numbers, same

from flambeau.core.dtype import DTYPES, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8
from flambeau.core.flags import flags
from flambeau.ops.index.indexing import reductions
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = needs_gpu

OPERATORS = (
    "index", "index_put", "index_select", "index_add", "index_copy", "index_fill", "index_reduce", "gather", "scatter",
    "take", "put", "masked_fill", "masked_scatter", "nonzero_count", "nonzero",
)  # fmt: skip
random = np.random.default_rng(5)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", DTYPES, ids=lambda kind: kind.name)
def test_samples(name: str, kind: Any) -> None:
    if kind not in table[name].dtypes:
        return
    flags.deterministic = True  # variants of the samples write twice to one place
    try:
        operator_properties.check_virtual(table[name], kind, GPU)
    finally:
        flags.deterministic = False


@pytest.mark.parametrize("kind", (uint8, float16, float32, float64), ids=lambda kind: kind.name)
@pytest.mark.parametrize("index_kind", (np.int32, np.int64))
def test_reading_many(kind: Any, index_kind: Any) -> None:
    x = numbers(kind, 60 * 70 * 80).reshape(60, 70, 80)
    for dim in range(3):
        where = random.integers(0, x.shape[dim], (50, 40, 80)).astype(index_kind)
        for layout in (
            operator_properties.plain,
            operator_properties.reversed_dims,
            operator_properties.with_gaps,
        ):
            same("gather", (x, where), (dim,), layout)
            same("index_select", (x, where[0, :, 0].copy()), (dim,), layout)
    a, b = (
        random.integers(-60, 60, (30, 1)).astype(index_kind),
        random.integers(-80, 80, 50).astype(index_kind),
    )
    for layout in (
        operator_properties.plain,
        operator_properties.reversed_dims,
        operator_properties.with_gaps,
    ):
        same("index", (x, a, b), ((0, 2),), layout)
        same("index", (x, a, a), ((0, 1),), layout)
        same("take", (x, random.integers(-x.size, x.size, (100, 7))), (), layout)


@pytest.mark.parametrize(
    "kind", (bool_, int8, int32, int64, float16, bfloat16, float32), ids=lambda kind: kind.name
)
def test_many_values_of_one_place_are_joined_in_order(kind: Any) -> None:
    x, few = finite(kind, 500).reshape(50, 10), random.integers(0, 50, 3000)
    source = finite(kind, 30000, seed=1).reshape(3000, 10)
    same("index_put", (x, source, few), ((0,), True))
    same("index_add", (x, few, source, 1), (0,))
    same("put", (x, few, source[:, 0].copy()), (True,))
    for how in ("prod", "amax", "amin", "mean"):
        for include_self in (True, False):
            if how in reductions(kind):
                same("index_reduce", (x, few, source), (0, how, include_self))
    where = random.integers(0, 50, (3000, 10))
    tall = finite(kind, 40000, seed=2).reshape(4000, 10)
    for how in ("sum", "prod", "amax", "amin", "mean"):
        if not (how == "sum" and kind is float32):  # adds atomically, in no fixed order
            same("scatter", (tall, where, source), (0, how, True, "scatter"))
        same("scatter", (tall, where, source), (0, how, False, "scatter"))


def test_scatter_add_of_floats_in_any_order_and_in_a_fixed_one() -> None:
    x, where = np.zeros(64, np.float32), random.integers(0, 64, 20000)
    source = random.standard_normal(20000).astype(np.float32)
    exact = np.zeros(64)
    np.add.at(exact, where, source.astype(np.float64))
    args = [operator_properties.tensor_of(a, operator_properties.plain, GPU) for a in (x, where, source)]
    assert np.allclose(args[0].scatter_add(0, args[1], args[2]).cpu().numpy(), exact, atol=1e-2)
    flags.deterministic = True
    try:
        same("scatter", (x, where, source), (0, "sum", True, "scatter"))
        same("scatter", (x, where, source), (0, "", True, "scatter"))  # the last one stays
        same("index_put", (x, source, where), ((0,), False))
    finally:
        flags.deterministic = False


@pytest.mark.parametrize("call", (
    "x.gather(0, bad)", "x[bad]", "x.index_select(0, bad)", "x.scatter_(0, bad, x.clone())", "x.index_add_(0, bad, x.clone())",
))  # fmt: skip
def test_an_index_out_of_range_is_said_late_and_stays(call: str) -> None:
    program = f"""
import flambeau as torch
x = torch.zeros(4, device="cuda")
bad = torch.tensor([0, 9, 1, 2], device="cuda")
{call}
for attempt in (torch.cuda.synchronize, torch.cuda.current_stream().synchronize, lambda: x + x, lambda: x.cpu()):
    try:
        attempt()
    except RuntimeError as error:
        print(error)
"""
    said = in_fresh_process(program).splitlines()
    assert len(said) == 4 and all("device-side assert triggered" in line for line in said), said
    assert "index 9" in said[0] or "index out of range in self" in said[0]
