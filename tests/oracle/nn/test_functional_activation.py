"""Activations and softmax against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
from functional import HALF_AND_UP, both, draw, refuses
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, torch

import flambeau

ACTIVATIONS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "relu": ((),), "relu6": ((),), "leaky_relu": ((), (0.3,)), "elu": ((), (0.7,)), "selu": ((),),
    "celu": ((), (1.7,)), "gelu": ((),), "silu": ((),), "mish": ((),), "softplus": ((), (2.0, 1.0)),
    "softsign": ((),), "hardtanh": ((), (-0.5, 2.0)), "hardsigmoid": ((),), "hardswish": ((),),
    "tanhshrink": ((),), "softshrink": ((), (1.2,)), "hardshrink": ((), (1.2,)), "threshold": ((0.1, 20),),
    "logsigmoid": ((),), "sigmoid": ((),), "tanh": ((),), "rrelu": ((), (0.2, 0.4)),
}  # fmt: skip
INPLACE = (
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "mish", "hardtanh", "hardsigmoid", "hardswish",
)  # fmt: skip
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.0, -3.0, 0.5, -0.5, 6.0, 100.0, -100.0]


@pytest.mark.parametrize("kind", (*HALF_AND_UP, "int64"))
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, kind: str) -> None:
    x = draw(5, 7, kind=kind, low=-8, high=8)
    special = torch.tensor(SPECIAL).to(x.dtype) if kind != "int64" else x
    for args in ACTIVATIONS[name]:
        for each in (x, x.t(), x[0, 0], x[:0], special):
            if name == "gelu":
                each = each.nan_to_num()  # PyTorch's vectors give NaN at infinity
            both(
                lambda nn, t, args=args: getattr(nn, name)(t, *args),
                each, ulps=4, atol={"float32": 1e-6, "float64": 1e-15}.get(kind, 1e-6 if name == "gelu" else 0),
            )  # fmt: skip


@pytest.mark.parametrize("name", INPLACE)
def test_inplace_stores_into_the_input_and_returns_it(name: str) -> None:
    x = draw(4, 3)
    want = getattr(flambeau.nn.functional, name)(from_torch(x))
    ours = from_torch(x)
    assert getattr(flambeau.nn.functional, name)(ours, inplace=True) is ours
    assert ours.tolist() == want.tolist()
    assert ours._version == 1


def test_gelu_glu_and_prelu() -> None:
    x = draw(4, 6, 2)
    both(lambda nn, t: nn.gelu(t, approximate="tanh"), x, atol=1e-6)
    for dim in (-1, 0, 1, 5):
        both(lambda nn, t, dim=dim: nn.glu(t, dim), x, ulps=4)
    both(lambda nn, t: nn.glu(t), x[..., :1])
    for weight in (draw(1, seed=3), draw(6, seed=3), draw(5, seed=3), draw(2, 3), draw(1, kind="float64")):
        both(lambda nn, t, w: nn.prelu(t, w), x, weight, ulps=1)
    both(lambda nn, t, w: nn.prelu(t, w), x[0, 0, 0], draw(1))
    refuses(RuntimeError, "Halving dimension must be even", lambda nn, t: nn.glu(t, -1), x[..., :1])


@given(
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from((*HALF_AND_UP, "int32", "bool")),
    st.integers(-5, 4),
    st.sampled_from(("softmax", "log_softmax", "softmin")),
    st.sampled_from((None, "float32", "float64", "float16")),
)
def test_softmax(shape: Any, kind: str, dim: int, name: str, asked: str | None) -> None:
    x = draw(*shape, seed=dim + 5, low=-20, high=20).to(getattr(torch, kind))
    given_dtype = None if asked is None else getattr(torch, asked)
    both(lambda nn, t, d: getattr(nn, name)(t, dim, dtype=d), x, given_dtype, ulps=24 if "64" in kind else 12)


def test_softmax_is_a_function_and_a_method_too() -> None:
    x = from_torch(draw(3, 4))
    for name in ("softmax", "log_softmax"):
        want = getattr(flambeau.nn.functional, name)(x, -1).tolist()
        assert getattr(flambeau, name)(x, -1).tolist() == want
        assert getattr(x, name)(dim=-1).tolist() == want


def test_softmax_without_dim_warns_and_chooses_as_pytorch() -> None:
    for shape in ((3,), (3, 4), (2, 3, 4), (2, 2, 3, 2)):
        both(lambda nn, t: nn.softmax(t), draw(*shape), ulps=4)
    with pytest.warns(UserWarning, match="Implicit dimension choice for softmax has been deprecated"):
        flambeau.nn.functional.softmax(flambeau.zeros(2))


def test_gumbel_softmax_draws_as_pytorch() -> None:
    x = draw(6, 5)
    for hard in (False, True):

        def run(nn: Any, t: Any, hard: bool = hard) -> Any:
            (torch if nn is torch.nn.functional else flambeau).manual_seed(7)
            return nn.gumbel_softmax(t, tau=0.5, hard=hard)

        both(run, x, atol=1e-6)


def test_rrelu_in_training_draws_as_pytorch() -> None:
    def run(nn: Any, t: Any) -> Any:
        (torch if nn is torch.nn.functional else flambeau).manual_seed(11)
        return nn.rrelu(t, training=True)

    both(run, draw(7, 5), ulps=2)


def test_refusals() -> None:
    x = draw(3)
    refuses(ValueError, "min_val cannot be greater", lambda nn, t: nn.hardtanh(t, 2.0, 1.0), x)
    refuses(RuntimeError, "lambda must be greater or equal to 0", lambda nn, t: nn.softshrink(t, -1.0), x)
    refuses(RuntimeError, "approximate argument", lambda nn, t: nn.gelu(t, approximate="erf"), x)
    refuses(
        NotImplementedError, "not implemented for 'Long'", lambda nn, t: nn.softmax(t, 0), torch.arange(3)
    )
    refuses(IndexError, "Dimension out of range", lambda nn, t: nn.softmax(t, 2), x)


BOUNDS = [-8.0, -6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 21.0, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize(
    "name",
    [
        "hardtanh", "relu6", "hardswish", "hardsigmoid", "softplus", "elu", "celu", "selu", "hardshrink", "softshrink",
        "leaky_relu", "relu", "threshold",
    ],
)  # fmt: skip
def test_gradients_where_pieces_meet_and_of_nan(name: str) -> None:
    found = []
    for lib in (flambeau, torch):
        x = lib.tensor(BOUNDS, dtype=lib.float64, requires_grad=True)
        function = getattr(lib.nn.functional, name)
        result = function(x, 0.5, 7.0) if name == "threshold" else function(x)
        result.sum().backward()
        found.append(x.grad.tolist())
    assert found[0] == pytest.approx(found[1], rel=1e-6, nan_ok=True)


def test_integers_are_held_by_hardtanh() -> None:
    for lib in (flambeau, torch):
        x = lib.arange(-3, 9)
        assert lib.nn.functional.hardtanh(x).dtype is lib.int64
        assert lib.nn.functional.relu6(x).tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 6, 6]
