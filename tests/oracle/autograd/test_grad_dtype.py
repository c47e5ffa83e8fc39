"""`Tensor.grad_dtype`, and gradients of another dtype than their tensor's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layouts import outcome

import flambeau


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16", "complex64"])
@pytest.mark.parametrize("given", ["float32", "float64", "int64", "bool", "complex128"])
def test_a_gradient_of_another_dtype_is_refused(kind: str, given: str) -> None:
    def assigned(m: Any) -> Any:
        x = m.ones(3, dtype=getattr(m, kind))
        x.grad = m.ones(3, dtype=getattr(m, given))
        return x.grad.dtype

    ours, theirs = outcome(lambda: assigned(flambeau)), outcome(lambda: assigned(torch))
    assert type(ours) is type(theirs) or str(ours) == str(theirs)
    if isinstance(theirs, Exception):
        assert str(ours).split(" (", 1)[0] == str(theirs).split(" (", 1)[0]


@pytest.mark.parametrize("kind", ["float16", "float32", "int64"])
def test_it_is_the_dtype_of_the_tensor(kind: str) -> None:
    for m in (flambeau, torch):
        x = m.ones(3, dtype=getattr(m, kind))
        assert x.grad_dtype == x.dtype
        x.grad_dtype = x.dtype


def test_refusals_read_as_pytorchs() -> None:
    def made(m: Any) -> Any:
        return m.ones(3, requires_grad=True) * 2

    def given(m: Any, x: Any, value: Any) -> None:
        x.grad_dtype = value

    for run in (
        lambda m: made(m).grad_dtype,
        lambda m: given(m, made(m), m.float16),
        lambda m: given(m, m.ones(3), "float16"),
    ):
        ours, theirs = outcome(lambda run=run: run(flambeau)), outcome(lambda run=run: run(torch))
        assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    for value in (flambeau.float16, None):
        with pytest.raises(flambeau.NotSupportedError, match="gradients are of their tensor's dtype"):
            given(flambeau, flambeau.ones(3), value)


@pytest.mark.parametrize("kind", ["uint8", "bool", "int8"])
def test_gradient_of_a_quotient_with_an_integer_dividend(kind: str) -> None:
    found = []
    for module in (torch, flambeau):
        divisor = module.tensor([0.5, 2.0, -4.0], requires_grad=True)
        (module.tensor([3, 0, 1], dtype=getattr(module, kind)) / divisor).sum().backward()
        found.append(divisor.grad.tolist())
    if kind == "uint8":  # PyTorch negates the dividend in its dtype, where it wraps around
        found[0] = [-12.0, 0.0, -1 / 16]
    assert found[0] == pytest.approx(found[1])
