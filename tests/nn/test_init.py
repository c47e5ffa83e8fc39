"""nn.init against PyTorch's: the same numbers for the same seed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from nn_kit import agree, fails
from support import same, torch

import flambeau

SHAPES = ((3, 5), (20, 7), (4, 3, 2, 5), (6, 2, 3))


def drawn(t: Any, fill: Callable[[Any, Any], Any], shape: tuple[int, ...], kind: str = "float32") -> Any:
    t.manual_seed(1)
    x = t.empty(shape, dtype=getattr(t, kind))
    assert fill(t.nn.init, x) is x
    return x


TO_THE_BIT = {
    "uniform": lambda init, x: init.uniform_(x, -2, 3),
    "normal": lambda init, x: init.normal_(x, 1, 0.5),
    "constant": lambda init, x: init.constant_(x, 0.3),
    "ones": lambda init, x: init.ones_(x),
    "zeros": lambda init, x: init.zeros_(x),
    "xavier_uniform": lambda init, x: init.xavier_uniform_(x, gain=1.7),
    "xavier_normal": lambda init, x: init.xavier_normal_(x),
    "kaiming_uniform": lambda init, x: init.kaiming_uniform_(x, a=0.2),
    "kaiming_uniform_out": lambda init, x: init.kaiming_uniform_(x, mode="fan_out", nonlinearity="relu"),
    "kaiming_normal": lambda init, x: init.kaiming_normal_(x, nonlinearity="tanh"),
    "kaiming_normal_out": lambda init, x: init.kaiming_normal_(x, 0.1, "fan_out"),
    "trunc_normal": lambda init, x: init.trunc_normal_(x, 0.5, 1.0, -1, 2),
    "trunc_normal_narrow": lambda init, x: init.trunc_normal_(x, 0.0, 1.0, 0.1, 0.3),
    "trunc_normal_tail": lambda init, x: init.trunc_normal_(x, 0.0, 1.0, 1.0, 2.0),
}


@pytest.mark.parametrize("name", TO_THE_BIT)
@pytest.mark.parametrize("kind", ("float32", "float64"))
def test_the_same_numbers(name: str, kind: str) -> None:
    for shape in SHAPES:
        ours, theirs = (drawn(t, TO_THE_BIT[name], shape, kind) for t in (flambeau, torch))
        same(
            ours, theirs, ulps=256 if "trunc" in name else 4 if "norm" in name else 0
        )  # logarithm and cosine are rounded apart


def test_matrices() -> None:
    for shape in SHAPES:
        ours, theirs = (drawn(t, lambda init, x: init.orthogonal_(x, 1.5), shape) for t in (flambeau, torch))
        assert torch.allclose(torch.tensor(ours.tolist()), theirs, atol=1e-5)
    for shape in ((3, 5), (5, 3), (4, 4)):
        agree(lambda t, s=shape: t.nn.init.eye_(t.empty(s)))
        ours, theirs = (drawn(t, lambda init, x: init.sparse_(x, 0.3), shape) for t in (flambeau, torch))
        same(ours, theirs, ulps=4)
    for shape, groups in (((4, 3, 3), 1), ((6, 2, 3, 5), 2), ((4, 6, 2, 3, 3), 2)):
        agree(lambda t, s=shape, g=groups: t.nn.init.dirac_(t.empty(s), g))


def test_q08_gains() -> None:
    for name in (
        "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid",
        "tanh", "relu", "leaky_relu", "selu", "gelu", "",
    ):  # fmt: skip
        agree(lambda t, n=name: t.nn.init.calculate_gain(n))
    for param in (0.2, 3, 0, True, "x", None):
        agree(lambda t, p=param: t.nn.init.calculate_gain("leaky_relu", p))
    assert math.isclose(flambeau.nn.init.calculate_gain("leaky_relu", 0.2), math.sqrt(2 / 1.04))


WRONG = (
    lambda t: t.nn.init.eye_(t.empty(2)),
    lambda t: t.nn.init.dirac_(t.empty(2, 2)),
    lambda t: t.nn.init.dirac_(t.empty(3, 2, 2), 2),
    lambda t: t.nn.init.orthogonal_(t.empty(2)),
    lambda t: t.nn.init.sparse_(t.empty(2), 0.1),
    lambda t: t.nn.init.xavier_uniform_(t.empty(2)),
    lambda t: t.nn.init.kaiming_uniform_(t.empty(2, 2), mode="fan_middle"),
    lambda t: t.nn.init.kaiming_uniform_(t.empty(2, 2), nonlinearity="nothing"),
)


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_errors(index: int) -> None:
    fails(WRONG[index])


def test_warnings() -> None:
    agree(lambda t: t.nn.init.kaiming_uniform_(t.empty(0, 2)))
    agree(lambda t: t.nn.init.kaiming_normal_(t.empty(0, 2)))
    agree(lambda t: t.nn.init.trunc_normal_(t.empty(3), 9.0, 1.0, -1, 1).shape)
    for old in (
        "uniform", "normal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "eye", "orthogonal",
    ):  # fmt: skip
        agree(lambda t, o=old: [getattr(t.nn.init, o)(t.empty(2, 2)).shape, getattr(t.nn.init, o).__name__])


def test_a_generator_of_ones_own_is_used() -> None:
    source = flambeau.Generator().manual_seed(4)
    flambeau.manual_seed(0)
    a = flambeau.nn.init.uniform_(flambeau.empty(5), generator=source)
    b = flambeau.nn.init.uniform_(flambeau.empty(5), generator=source.manual_seed(4))
    assert a.tolist() == b.tolist()
    assert flambeau.initial_seed() == 0


def test_parameters_are_filled_without_a_history() -> None:
    p = flambeau.nn.Parameter(flambeau.empty(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fill in ("uniform_", "normal_", "ones_", "zeros_", "eye_", "orthogonal_", "trunc_normal_"):
            assert getattr(flambeau.nn.init, fill)(p) is p
            assert p.is_leaf and p.requires_grad
