"""Where no gradient passes, or PyTorch has none: the same zeros, nodes and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau

CALLS: dict[str, Callable[..., Any]] = {
    "histc": lambda room, x: room.histc(x),
    "heaviside": lambda room, x: room.heaviside(x, x),
    "heaviside of values": lambda room, x: room.heaviside(x.detach(), x),
    "poisson": lambda room, x: room.poisson(x),
    "bernoulli": lambda room, x: room.bernoulli(x),
    "bincount": lambda room, x: room.bincount(room.arange(3), x.reshape(-1)[:3]),
    "unique": lambda room, x: room.unique(x),
    "multinomial": lambda room, x: room.multinomial(x, 2),
    "normal": lambda room, x: room.normal(x, x),
    "normal of deviations": lambda room, x: room.normal(0.0, x),
    "normal of means": lambda room, x: room.normal(x, 1.0),
    "bessel_j0": lambda room, x: room.special.bessel_j0(x),
    "legendre_polynomial_p": lambda room, x: room.special.legendre_polynomial_p(x, 2),
    "rand_like": lambda room, x: room.rand_like(x),
    "ceil": lambda room, x: room.ceil(x),
    "isin": lambda room, x: room.isin(x, x),
}
NAMES_DIFFER = {"normal of deviations", "normal of means", "unique"}  # overloads have numbers; a copy follows


def outcome(room: Any, name: str) -> tuple[Any, ...]:
    """Whether the result requires a gradient, its node, and the gradient or the refusal."""
    x = room.full((3, 3), 0.5, requires_grad=True)
    y = CALLS[name](room, x)
    if not y.requires_grad:
        return (False,)
    node = None if name in NAMES_DIFFER else y.grad_fn.name()
    try:
        (3 * y).sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        return True, node, type(error), str(error)
    return True, node, x.grad.tolist()


def of_ctc(room: Any) -> Any:
    """The second derivative of the loss: of the refusal, its type and text."""
    probs = room.full((5, 2, 4), -1.4, requires_grad=True)
    targets, five, two = room.tensor([[1, 2], [2, 3]]), room.tensor([5, 5]), room.tensor([2, 2])
    loss = room.nn.functional.ctc_loss(probs, targets, five, two)
    (grad,) = room.autograd.grad(loss, probs, create_graph=True)
    with pytest.raises(RuntimeError) as caught:
        grad.sum().backward()
    return str(caught.value)


def test_the_second_derivative_of_ctc_loss() -> None:
    assert of_ctc(flambeau) == of_ctc(torch)


@pytest.mark.parametrize("name", CALLS)
def test_as_pytorch(name: str) -> None:
    assert outcome(flambeau, name) == outcome(torch, name)
