"""Second derivatives where formulas have edges: at zero, with nothing to sum over, of what does not read its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau

LIBRARIES = (flambeau, torch)


def twice(lib: Any, function: Callable[[Any], Any], *inputs: Any) -> list[list[float]]:
    """The gradients of `function`, and theirs, as flat lists."""
    xs = [lib.tensor(values, dtype=lib.float64, requires_grad=True) for values in inputs]
    grads = lib.autograd.grad((function(*xs) ** 2).sum(), xs, create_graph=True)
    again = lib.autograd.grad(sum((g**2).sum() for g in grads), xs)
    return [g.detach().reshape(-1).tolist() for g in (*grads, *again)]


def agree(function: Callable[[Any], Callable[..., Any]], *inputs: Any) -> None:
    ours, theirs = (twice(lib, function(lib), *inputs) for lib in LIBRARIES)
    for mine, their in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(their, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e"])
def test_bessel_functions_at_and_next_to_zero(name: str) -> None:
    agree(lambda lib: getattr(lib.special, name), [0.0, 1e-20, -1e-17, 1e-3, -0.5, 2.0])


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_norms_over_some_and_over_all_dimensions(name: str, dims: int) -> None:
    x = [[[0.5, -1.0, 2.0], [0.25, 0.75, -0.5]]]
    weight: Any = [[[1.0, 2.0, -0.5], [0.3, 0.7, 1.5]]]
    for _ in range(3 - dims):
        weight = weight[0]
    shape = [1, 2, 3][3 - dims :]
    agree(lambda lib: lambda x, w: getattr(lib.nn.functional, name)(x, shape, w), x, weight)


def test_a_matrix_to_the_power_of_zero_depends_on_it_with_zeros() -> None:
    for lib in LIBRARIES:
        x = lib.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True)
        y = lib.linalg.matrix_power(x, 0)
        assert y.tolist() == [[1.0, 0.0], [0.0, 1.0]]
        y.sum().backward()
        assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_gradients_of_no_inputs_are_refused() -> None:
    texts = []
    for lib in LIBRARIES:
        with pytest.raises(RuntimeError) as refused:
            lib.autograd.grad(lib.ones(1, requires_grad=True) * 2, [])
        texts.append(str(refused.value))
    assert texts[0] == texts[1]


REDUCED = [2.0, 3.0, 0.0], [0.0, 1.5, 2.0, 0.7]  # a zero among what is multiplied, and one that is multiplied


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("name", ["scatter_reduce", "index_reduce"])
def test_products_over_a_zero(name: str, include_self: bool) -> None:
    def function(lib: Any) -> Callable[..., Any]:
        places = lib.tensor([0, 0, 1, 1])
        return lambda x, source: getattr(x, name)(0, places, source, "prod", include_self=include_self)

    agree(function, *REDUCED)


@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_products_of_one_tensor_over_a_zero(name: str) -> None:
    agree(lambda lib: lambda x: getattr(x, name)(0), [0.5, 0.0, 2.0, -1.5])


@pytest.mark.parametrize(
    "name", ["relu", "relu6", "leaky_relu", "hardtanh", "hardshrink", "softshrink", "threshold", "prelu"]
)
def test_slopes_of_straight_pieces_depend_on_the_input_with_zeros(name: str) -> None:
    """So that the curvature of a network of relus can be asked for, as programs that solve equations do."""
    found = []
    for lib in LIBRARIES:
        x = lib.tensor([0.25, -2.0, 0.0, 7.0, float("nan")], requires_grad=True)
        more = {"threshold": (0.1, 2.0), "prelu": (lib.tensor([0.5]),)}.get(name, ())
        (slope,) = lib.autograd.grad(
            getattr(lib.nn.functional, name)(x * 3, *more).sum(), x, create_graph=True
        )
        (curvature,) = lib.autograd.grad(slope.sum(), x)
        found.append([slope.tolist(), curvature.tolist()])
    assert repr(found[0]).replace("-0.0", "0.0") == repr(found[1]).replace("-0.0", "0.0")
