"""Lazy modules and their parameters without shapes, against PyTorch's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from nn_kit import agree, fails

import flambeau
from flambeau import nn


def lazy(t: Any) -> Any:
    return t.nn.Sequential(t.nn.LazyConv2d(4, 3), t.nn.LazyBatchNorm2d(), t.nn.Flatten(), t.nn.LazyLinear(2))


def test_the_first_input_gives_the_shapes() -> None:
    def play(t: Any) -> Any:
        m = lazy(t)
        before = [repr(m), m[0].has_uninitialized_params(), repr(m[0].weight), repr(m[1].running_mean)]
        t.manual_seed(0)
        out = m(t.ones(2, 3, 5, 5))
        return [
            before,
            repr(m),
            [p.shape for p in m.parameters()],
            out.shape,
            m[0].in_channels,
            m[3].in_features,
        ]

    agree(play)


def test_lazy_parameters_can_be_moved_and_cast_before() -> None:
    def play(t: Any) -> Any:
        m = lazy(t).double().to("cpu")
        m(t.ones(2, 3, 5, 5, dtype=t.float64))
        return [[p.dtype, p.requires_grad] for p in m.parameters()]

    agree(play)


@pytest.mark.parametrize("what", ("numel", "sum", "add", "shape"))
def test_nothing_else_is_known_of_them(what: str) -> None:
    uses = {
        "numel": lambda p: p.numel(), "sum": lambda p: p.sum(), "add": lambda p: p + 1, "shape": lambda p: p.shape,
    }  # fmt: skip
    for kind in (nn.UninitializedParameter, nn.UninitializedBuffer):
        with pytest.raises((ValueError, RuntimeError), match="uninitialized parameter"):
            uses[what](kind())
    agree(lambda t: [repr(t.nn.UninitializedParameter()), t.nn.UninitializedParameter().requires_grad])
    agree(
        lambda t: [t.nn.UninitializedParameter(dtype=t.float64).dtype, t.nn.UninitializedBuffer().device.type]
    )
    agree(lambda t: [isinstance(t.nn.UninitializedBuffer(), t.nn.Buffer), t.nn.parameter.is_lazy(t.ones(1))])


def test_states_load_into_lazy_modules_and_back() -> None:
    def play(t: Any) -> Any:
        full = lazy(t)
        full(t.ones(2, 3, 5, 5))
        m = lazy(t)
        keys = m.load_state_dict(full.state_dict())
        out = m.eval()(t.ones(1, 3, 5, 5))
        same = (out - full.eval()(t.ones(1, 3, 5, 5))).abs().max()
        return [repr(keys), same, type(m[0]).__name__, m[0].in_channels, list(lazy(t).state_dict())]

    agree(play)
    fails(
        lambda t: (
            lazy(t)[3](t.ones(2, 2)) is None
            or t.nn.Linear(2, 2).load_state_dict(t.nn.LazyLinear(2).state_dict())
        )
    )


def test_copies_and_pickles_of_lazy_modules() -> None:
    for again in (copy.deepcopy(lazy(flambeau)), pickle.loads(pickle.dumps(lazy(flambeau)))):
        assert again(flambeau.ones(2, 3, 5, 5)).shape == (2, 2)
        assert type(again[3]) is nn.Linear
    assert (
        pickle.loads(pickle.dumps(nn.UninitializedParameter(dtype=flambeau.float64))).dtype
        is flambeau.float64
    )


def test_gradients_reach_what_was_lazy() -> None:
    m = lazy(flambeau)
    m[2](m[1](m[0](flambeau.ones(2, 3, 5, 5)))).sum()
    out = nn.LazyLinear(2)
    out(flambeau.ones(2, 3)).sum().backward()
    assert out.weight.grad.tolist() == [[2, 2, 2]] * 2
