"""`torch.func`: functional calls and gradients of functions, program by program as PyTorch's."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from support import torch

import flambeau

PROGRAMS = [
    # values, forms, what is unused
    "grad(lambda x: (x ** 3).sum())(x)",
    "grad_and_value(lambda x: (x ** 2).sum())(x)",
    "grad_and_value(lambda x: ((x ** 2).sum(), {'a': x * 2}), has_aux=True)(x)",
    "grad(lambda x: (x.sum(), (x, x)), has_aux=True)(x)",
    "grad(lambda x, y: (x * y).sum(), argnums=(0, 1))(x, x)",
    "grad(lambda x, y: (x * y).sum(), argnums=-1)(x, x + 1)",
    "grad(lambda x, y: x.sum(), argnums=(0, 1))(x, x)",
    "grad(lambda d: (d['a'] * d['b'][0]).sum())({'a': x, 'b': [x + 1, x]})",
    "grad(lambda x: m.ones(()))(x)",
    "grad(grad(lambda x: x ** 3))(m.tensor(2.0))",
    "grad(lambda x: (grad(lambda z: (z ** 3).sum())(x) * x).sum())(x)",
    "grad(lambda x, scale=1.0: (x * scale).sum())(x, scale=3.0)",
    # tapes outside
    "grad(lambda x: (x * w).sum())(x)",
    "grad(lambda v: (v ** 2).sum())(w)",
    "grad_and_value(lambda v: (v ** 2).sum())(w)",
    "m.autograd.grad(grad(lambda x: (x * w ** 2).sum())(x).sum(), w)",
    "m.autograd.grad(grad(lambda v: (v ** 3).sum())(w).sum(), w)",
    "[t.requires_grad for t in (grad(lambda x: (x * x).sum())(x), grad(lambda x: (x * w).sum())(x))]",
    "m.no_grad()(grad_and_value(lambda v: (v ** 2).sum()))(w)",
    # modules
    "functional_call(n, {'weight': m.ones(1, 3)}, x)",
    "functional_call(n, [{'weight': m.ones(1, 3)}, {'bias': m.ones(1)}], (x,))",
    "functional_call(n, (), x)",
    "functional_call(n, {'other': x, 'bias': x}, x, strict=True)",
    "functional_call(n, ({'bias': x}, {'bias': x}), x)",
    "functional_call(n, 3, x)",
    "functional_call(n, ({}, 3), x)",
    "grad(lambda p: functional_call(n, p, x).square().sum())(dict(n.named_parameters()))['weight'].shape",
    # errors
    "grad(lambda x: x)(x)",
    "grad(lambda x: 1.0)(x)",
    "grad(lambda x: (x.sum(), 1))(x)",
    "grad(lambda x: (x.sum(), 1), has_aux=True)(x)",
    "grad(lambda x: x.sum(), has_aux=True)(x)",
    "grad(lambda x: x.sum())(x.long())",
    "grad(lambda x: x.sum())(1.0)",
    "grad(lambda d: d['a'].sum())({'a': x, 'b': 3})",
    "grad(lambda x: x.sum(), argnums=1)(x)",
    "grad(lambda x: x.sum(), argnums='a')(x)",
]


def outcome(m: Any, program: str) -> str:
    names = {
        "m": m, "x": m.arange(3.0), "w": m.ones(3, requires_grad=True), "n": m.nn.Linear(3, 1),
        **{name: getattr(m.func, name) for name in ("functional_call", "grad", "grad_and_value")},
    }  # fmt: skip
    with m.no_grad():
        for p in names["n"].parameters():
            p.fill_(0.5)
    try:
        text = repr(eval(program, names))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return re.sub(r"grad_fn=<\w+>", "grad_fn", text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_pytorchs(program: str) -> None:
    assert outcome(flambeau, program) == outcome(torch, program)


def test_a_functional_call_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flambeau.func.functional_call(flambeau.nn.Linear(1, 1), {}, flambeau.ones(1, 1))


def test_what_is_absent_says_so() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'torch.func' has no attribute 'vmap': Flambeau lacks it"
    ):
        flambeau.func.vmap  # noqa: B018
