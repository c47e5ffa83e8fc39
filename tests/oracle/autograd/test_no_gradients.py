"""Where no gradient passes, or PyTorch has none: the same zeros, nodes and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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
    "floor_divide": lambda room, x: room.floor_divide(x, 2),
    "//": lambda room, x: 2 // x,
    "div floor": lambda room, x: room.div(x, 2, rounding_mode="floor"),
}
NAMES_DIFFER = {
    "normal of deviations",
    "normal of means",
    "unique",
    "div floor",
}  # overloads have numbers; a copy follows


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


# -- arguments that must not require gradients ----------------------------------------------------------------

REFUSED: dict[str, Callable[..., Any]] = {
    "nll_loss": lambda room, f, x, w: f.nll_loss(x, room.tensor([0, 1]), w),
    "nll_loss of images": lambda room, f, x, w: f.nll_loss(x[:, :, None], room.tensor([[0], [1]]), w),
    "cross_entropy": lambda room, f, x, w: f.cross_entropy(x, room.tensor([0, 1]), w, label_smoothing=0.5),
    "multi_margin_loss": lambda room, f, x, w: f.multi_margin_loss(x, room.tensor([0, 1]), weight=w),
    "binary_cross_entropy": lambda room, f, x, w: f.binary_cross_entropy(x, x, w),
    "weight of logits": lambda room, f, x, w: f.binary_cross_entropy_with_logits(x, x, w),
    "pos_weight of logits": lambda room, f, x, w: f.binary_cross_entropy_with_logits(x, x, pos_weight=w),
    "soft_margin_loss": lambda room, f, x, w: f.soft_margin_loss(x, w),
    "running mean": lambda room, f, x, w: f.batch_norm(x, w, room.ones(3)),
    "running variance": lambda room, f, x, w: f.batch_norm(x, room.ones(3), w),
    "statistics of instances": lambda room, f, x, w: f.instance_norm(
        x[None], room.ones(2), w[:2], use_input_stats=False
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_without_derivative_may_not_require_gradients(name: str) -> None:
    def error_of(room: Any) -> str:
        x, weight = room.full((2, 3), 0.5), room.full((3,), 0.5, requires_grad=True)
        with room.no_grad():
            REFUSED[name](room, room.nn.functional, x, weight)
        with pytest.raises(RuntimeError) as caught:
            REFUSED[name](room, room.nn.functional, x, weight)
        return str(caught.value)

    assert error_of(flambeau) == error_of(torch)


# -- values that a gradient depends on ------------------------------------------------------------------------


def gradients(room: Any, define: Callable[..., Any], *inputs: Any) -> list[Any]:
    leaves = [room.tensor(values, requires_grad=True) for values in inputs]
    define(room, *leaves).sum().backward()
    return [leaf.grad.numpy() for leaf in leaves]


@pytest.mark.parametrize("eps", [1e-8, 3.0, 30.0])
def test_cosine_similarity_of_short_vectors_has_the_gradient_of_the_norm(eps: float) -> None:
    rows = np.random.default_rng(4).normal(0, 2, (2, 5, 3)).astype("float32")
    both = [
        gradients(room, lambda room, a, b: room.cosine_similarity(a, b, eps=eps), *rows)
        for room in (flambeau, torch)
    ]
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["hardtanh", "relu6", "elu", "selu", "celu", "hardswish", "hardshrink", "softshrink", "hardsigmoid"],
)
def test_gradients_at_nan_are_those_of_pytorchs_scalar_code(name: str) -> None:
    """PyTorch's vector code gives others for some of these: a tensor of one element does not reach it."""
    for value in (float("nan"), float("inf"), -float("inf")):
        ours, theirs = (
            gradients(room, lambda room, x: getattr(room.nn.functional, name)(x), [value])
            for room in (flambeau, torch)
        )
        np.testing.assert_array_equal(ours, theirs)
