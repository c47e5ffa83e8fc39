"""Sorting on a real GPU: the CPU's bits, NaN and both zeros included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, needs_gpu, numbers, same

from flambeau.core.dtype import bool_, float16, float32, float64, int8, int32, int64, uint8
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = needs_gpu

LAYOUTS = (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)


@pytest.mark.parametrize("name", ("sort", "topk", "unique", "searchsorted", "isin"))
def test_samples(name: str) -> None:
    for kind in table[name].dtypes:
        operator_properties.check_virtual(table[name], kind, GPU)


@pytest.mark.parametrize("kind", table["sort"].dtypes, ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", (1, 2, 33, 1000, 2048, 2049, 40_000))
def test_one_row(kind: Any, count: int) -> None:
    x = numbers(kind, count)
    for descending in (False, True):
        same("sort", (x,), (0, descending))
        if kind is not bool_:
            same("topk", (x,), (min(count, 17), 0, descending))


@pytest.mark.parametrize("kind", (bool_, uint8, float16, float32, int64), ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", ((1000, 3), (3, 1000), (7, 300, 5), (5, 3001), (300, 2100), (2, 3000, 3)))
def test_rows(kind: Any, shape: tuple[int, ...]) -> None:
    x = numbers(kind, int(np.prod(shape))).reshape(shape)
    for dim in range(len(shape)):
        for layout in LAYOUTS:
            same("sort", (x,), (dim, dim == 1), layout)
            if kind is not bool_:
                same("topk", (x,), (min(3, shape[dim]), dim, True), layout)


@pytest.mark.parametrize("kind", (int32, float32, float64), ids=lambda kind: kind.name)
def test_millions(kind: Any) -> None:
    x = numbers(kind, 3_000_001)
    same("sort", (x,), (0, False))
    same("sort", (np.zeros_like(x),), (0, False))
    same("sort", (np.sort(x),), (0, True))
    same("unique", (x,), (None, False, True, True))


@pytest.mark.parametrize("kind", (bool_, int8, float16, float32, int64), ids=lambda kind: kind.name)
@pytest.mark.parametrize("consecutive", (False, True))
def test_unique(kind: Any, consecutive: bool) -> None:
    for count in (1, 5, 2047, 5000):
        same("unique", (numbers(kind, count),), (None, consecutive, True, True))
    x = np.random.default_rng(3).integers(0, 2, (300, 6)).astype(kind.numpy)
    for layout in LAYOUTS:
        same("unique", (x,), (0, consecutive, True, True), layout)
        same("unique", (x,), (1, consecutive, True, True), layout)


def test_unique_of_nothing() -> None:
    same("unique", (np.zeros(0, np.float32),), (None, False, True, True))


@pytest.mark.parametrize("kind", (uint8, int64, float16, float32), ids=lambda kind: kind.name)
def test_searching(kind: Any) -> None:
    boundaries = np.sort(numbers(kind, 5000).astype(np.float64)).astype(kind.numpy)
    values = numbers(kind, 3000, seed=1)
    for right in (False, True):
        same("searchsorted", (boundaries, values), (right, False))
    order = np.random.default_rng(0).permutation(5000)
    same("searchsorted", (boundaries[order], values, np.argsort(order)), (False, True))
    rows = np.sort(np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32), axis=1)
    same(
        "searchsorted",
        (rows, np.random.default_rng(2).standard_normal((6, 9)).astype(np.float32)),
        (True, False),
    )
    for count in (0, 5, 65, 3000):
        same("isin", (values, numbers(kind, count, seed=4)), (count == 5,))


@pytest.mark.parametrize("name", ("kthvalue", "median", "nanmedian", "median_all", "nanmedian_all", "mode"))
def test_picks_from_sorted_rows(name: str) -> None:
    for kind in table[name].dtypes:
        operator_properties.check_virtual(table[name], kind, GPU)
        x = numbers(kind, 7 * 130 * 3).reshape(7, 130, 3)
        dims = None if name.endswith("all") else 1
        for rows in (x, numbers(kind, 600).reshape(2, 300), numbers(kind, 33_000).reshape(1, 33_000)):
            same(name, (rows,), (dims, False, None, *((9,) if name == "kthvalue" else ())))
