"""nn.grad against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
from module_cases import draw
from support import from_torch, to_torch, torch

import flambeau


@pytest.mark.parametrize("ndim", (1, 2, 3))
@pytest.mark.parametrize(
    "more", ({}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2, "padding": 1}), ids=str
)
def test_gradients_of_convolutions(ndim: int, more: dict[str, Any]) -> None:
    x, weight = (
        draw(2, 4, *(7, 6, 7)[:ndim]),
        draw(6, 4 // more.get("groups", 1), *(3,) * ndim),
    )
    out = getattr(torch.nn.functional, f"conv{ndim}d")(x, weight, **more)
    grad = draw(*out.shape, seed=2)
    for name, args in (("input", (x.shape, weight, grad)), ("weight", (x, weight.shape, grad))):
        run = f"conv{ndim}d_{name}"
        wanted = getattr(torch.nn.grad, run)(*args, **more)
        found = getattr(flambeau.nn.grad, run)(
            *[from_torch(a) if isinstance(a, torch.Tensor) else a for a in args], **more
        )
        torch.testing.assert_close(to_torch(found), wanted, atol=2e-5, rtol=1e-5)
