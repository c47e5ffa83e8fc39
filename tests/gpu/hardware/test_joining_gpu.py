"""Joining and rearranging on a real GPU: the CPU's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, needs_gpu, numbers, same

from flambeau.core.dtype import DTYPES, bfloat16, float32, int64
from flambeau.ops.index.masks import TILE
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = needs_gpu

OPERATORS = ("cat", "flip", "roll", "tril", "triu", "triangle_indices", "repeats_total", "repeat_places")
LAYOUTS = (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", DTYPES, ids=lambda kind: kind.name)
def test_samples(name: str, kind: Any) -> None:
    if kind not in table[name].dtypes:
        return
    operator_properties.check_virtual(table[name], kind, GPU)


@pytest.mark.parametrize("kind", (bfloat16, float32, int64), ids=lambda kind: kind.name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many(kind: Any, layout: Any) -> None:
    x = numbers(kind, 30 * 50 * 70).reshape(30, 50, 70)
    for dim in range(3):
        same("cat", (x, np.take(x, range(7), dim), x), (dim,), layout)
        same("flip", (x,), ((dim,),), layout)
        same("roll", (x,), ((11,), (dim,)), layout)
    same("flip", (x,), ((0, 2),), layout)
    same("roll", (x,), ((3, -60, 5), (0, 1, 0)), layout)
    same("roll", (x,), ((-12345,), ()), layout)
    for diagonal in (-60, -3, 0, 7, 80):
        same("tril", (x,), (diagonal,), layout)
        same("triu", (x,), (diagonal,), layout)
    same("nonzero_count", (x,), (), layout)
    before = np.cumsum([0, *np.add.reduceat(x.ravel() != 0, range(0, x.size, TILE))[:-1]])
    same("nonzero", (x, before), (int(np.count_nonzero(x)),), layout)
    mask = np.random.default_rng(0).random(x.shape) < 0.4
    same("masked_scatter", (x, mask, x), (), layout)


def test_triangles_of_all_shapes() -> None:
    import flambeau

    for row in (0, 1, 3, 40):
        for col in (0, 1, 5, 30):
            for offset in (-50, -4, -1, 0, 1, 3, 50):
                for name in ("tril_indices", "triu_indices"):
                    make = getattr(flambeau, name)
                    want, got = make(row, col, offset), make(row, col, offset, device=GPU)
                    assert operator_properties.bits(want) == operator_properties.bits(got), (
                        name,
                        row,
                        col,
                        offset,
                    )


def test_repeats() -> None:
    repeats = np.random.default_rng(1).integers(0, 5, 100_000)
    same("repeats_total", (repeats,))
    same("repeat_places", (repeats,), (int(repeats.sum()),))
