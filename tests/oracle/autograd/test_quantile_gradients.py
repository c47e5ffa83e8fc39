"""Gradients of quantiles, by values and by levels, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flambeau  # noqa: E402


def gradients(room: Any, name: str, x: Any, q: Any, **how: Any) -> list[Any]:
    a = room.tensor(x, requires_grad=True)
    levels = room.tensor(q, dtype=room.float64, requires_grad=True)
    y = getattr(room, name)(a, levels, **how)
    weight = room.tensor(np.arange(1.0, 1 + y.numel())).reshape(y.shape)
    found = room.autograd.grad((y * weight).nansum(), (a, levels), allow_unused=True)
    return [0 if g is None else g.numpy() for g in found]


@pytest.mark.parametrize("name", ("quantile", "nanquantile"))
@pytest.mark.parametrize("how", ("linear", "lower", "higher", "midpoint", "nearest"))
@pytest.mark.parametrize("dim", (None, 0, -1))
@pytest.mark.parametrize("holes", (False, True))
def test_gradients(name: str, how: str, dim: Any, holes: bool) -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, 3))
    if holes:
        x[1, 2, 0] = x[0, 0, 0] = np.nan
    for q in (0.3, [0.0, 0.25, 0.77, 1.0]):
        for keepdim in (False, True):
            options = {"dim": dim, "keepdim": keepdim, "interpolation": how}
            want = gradients(torch, name, x, q, **options)
            for got, known in zip(gradients(flambeau, name, x, q, **options), want, strict=True):
                np.testing.assert_allclose(got, np.broadcast_to(known, np.shape(got)), 1e-12, 1e-12)


@pytest.mark.parametrize("how", ("prod", "mean", "amax", "amin"))
@pytest.mark.parametrize("include", (False, True))
@pytest.mark.parametrize("dim", (0, 1, -1))
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce(how: str, include: bool, dim: int) -> None:
    rng = np.random.default_rng(1)
    x, index = rng.standard_normal((4, 5, 4)), np.array([3, 0, 3])
    shape = list(x.shape)
    shape[dim] = 3
    source, weight = rng.standard_normal(shape), rng.standard_normal(x.shape)
    found = []
    for room in (torch, flambeau):
        a, c = room.tensor(x, requires_grad=True), room.tensor(source, requires_grad=True)
        y = a.index_reduce(dim, room.tensor(index), c, how, include_self=include)
        found.append(room.autograd.grad((y * room.tensor(weight)).sum(), (a, c)))
    for known, got in zip(*found, strict=True):
        np.testing.assert_allclose(got.numpy(), known.numpy(), 1e-12, 1e-12)
