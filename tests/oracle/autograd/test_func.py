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
    # products and Jacobians
    "vjp(lambda a, b: (a * b).sum(0), x, w)[0]",
    "vjp(lambda a, b: a * b ** 2, x, x + 1)[1](x)",
    "vjp(lambda a: (a * 2, {'b': a.sum()}), x)[1]((x, {'b': m.tensor(1.0)}))",
    "vjp(lambda d: d['a'] ** 2, {'a': x})[1](x)",
    "vjp(lambda a: (a * 2, a + 1), x, has_aux=True)[::2]",
    "vjp(lambda a: a * 2, x)[1](m.ones(2))",
    "vjp(lambda a: 3, x)",
    "vjp(lambda a: m.ones(2), x)[1](m.ones(2))",
    "m.autograd.grad(vjp(lambda a: a ** 3, w)[1](x)[0].sum(), w)",
    "[t.requires_grad for t in (vjp(lambda a: a ** 2, x)[0], vjp(lambda a: a ** 2, w)[0], vjp(lambda a: a, x)[1](x)[0])]",
    "jvp(lambda a, b: (a * b).sum(), (x, x + 1), (x, m.ones(3)))",
    "jvp(lambda a: (a.sin(), a.sum()), (x,), (x,))",
    "jvp(lambda a: (a * 2, a), (x,), (x,), has_aux=True)",
    "jvp(lambda a: m.ones(2), (x,), (x,))",
    "jvp(lambda a: a * 2, x, x)",
    "jvp(lambda a: a * 2, (x,), (m.ones(2),))",
    "jvp(grad(lambda a: (a ** 3).sum()), (x,), (x,))[1]",
    "jacrev(lambda a, b: a[:, None] * b)(x, x + 1)",
    "jacrev(lambda a, b: a * b, argnums=(0, 1))(x, x + 1)",
    "jacrev(lambda d: {'s': d['a'].sum(), 't': d['a'] ** 2})({'a': x})",
    "jacrev(lambda a: (a * 2, a), has_aux=True)(x)",
    "jacrev(lambda a: m.ones(2))(x)",
    "jacrev(lambda a: a[:0])(x)",
    "jacrev(lambda a: a.tolist())(x)",
    "jacrev(lambda a: a, argnums=3)(x)",
    "jacfwd(lambda a, b: a * b.cumsum(0), argnums=1)(x, x + 1)",
    "jacfwd(lambda a: (a ** 2, a), has_aux=True)(x)",
    "jacfwd(jacrev(lambda a: (a ** 3).sum()))(x)",
    "hessian(lambda a: (a ** 3).sum())(x)",
    "hessian(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x)",
    "hessian(lambda a: a)(x)",
    "m.autograd.grad(jacrev(lambda a: a ** 2 * w ** 2)(x).sum(), w)",
    "jacrev(lambda p: functional_call(n, p, x))(dict(n.named_parameters()))",
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


KNOWN = ("functional_call", "grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian")


def outcome(m: Any, program: str) -> str:
    names = {
        "m": m, "x": m.arange(3.0), "w": m.ones(3, requires_grad=True), "n": m.nn.Linear(3, 1),
        **{name: getattr(m.func, name) for name in KNOWN},
    }  # fmt: skip
    with m.no_grad():
        for p in names["n"].parameters():
            p.fill_(0.5)
    try:
        with warnings.catch_warnings():
            if m is torch:  # its forward mode compiles with torch.jit
                warnings.simplefilter("ignore", DeprecationWarning)
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
        AttributeError, match=r"module 'torch.func' has no attribute 'nothing': Flambeau lacks it"
    ):
        flambeau.func.nothing  # noqa: B018
