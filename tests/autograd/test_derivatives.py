"""Every derivative of the operator table against differences of values, of first and second order."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from matrix_samples import AFTER, BEFORE

import flambeau as torch
from flambeau.core.dtype import complex128, dtype, float64
from flambeau.ops.derivative_helpers import Refusal
from flambeau.ops.op import MISSING, NOT_DIFFERENTIABLE, Op, table
from flambeau.tensor.call import call
from flambeau.testing.operator_properties import maker

NO_GRADIENT_FOR = {
    "nll_loss": (2,),  # PyTorch has none for class weights either
    "multi_margin_loss": (2,),
}
"""Inputs through which no gradient passes though they are floating."""
UNLIKE_DIFFERENCES: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "copy": lambda params: params[0] not in (float64, complex128),  # narrower: differences are lost
    "embedding": lambda params: (
        params != (None, False)
    ),  # the row of padding_idx gets no gradient, or it is scaled
    "_cdist_backward": lambda params: math.inf in params,  # only where a difference is the distance itself
}
"""Samples, by their parameters, whose gradient is by definition not that of differences."""
REFUSED = ("the derivative for", "The derivative of linalg.qr", "not differentiable when mode='complete'",
           "does not support automatic differentiation", "derivative for torch.grid_sample_backward is not implemented",
           "derivative for aten::_ctc_loss_backward is not implemented")  # fmt: skip
"""Texts of PyTorch's where a call has no derivative."""
EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
LARGEST = 300  # elements of an input: differences are taken one by one
ONCE, TWICE = (
    (math.inf, LARGEST) if EXHAUSTIVE else (60, 24)
)  # elements of all, by order, unless it is the smallest


def differentiable() -> list[Op]:
    """Those whose derivative is written; tests/oracle/autograd/test_no_gradients.py has those that PyTorch refuses."""
    return [
        op
        for op in table.values()
        if op.derivative not in (NOT_DIFFERENTIABLE, MISSING) and not isinstance(op.derivative, Refusal)
        if op.name != "fill"  # of a number: its node has a name, and no input takes a gradient
    ]


def test_every_record_has_a_derivative() -> None:
    """Its own, a refusal as PyTorch's, or the word that nothing it gives requires a gradient."""
    assert [name for name, op in table.items() if op.derivative is MISSING] == []


def samples(op: Op, kind: dtype) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    for inputs, params in op.samples(maker(kind, 5), kind):
        args = []
        for i, x in enumerate(inputs):
            if isinstance(x, np.ndarray | np.generic):
                t = torch.from_numpy(np.array(x))
                floating = t.is_floating_point() or t.is_complex()
                passes = op.derivative.whole is not None or (
                    i < len(op.derivative.formulas) and op.derivative.formulas[i] is not None
                )
                args.append(
                    t.requires_grad_()
                    if floating and passes and i not in NO_GRADIENT_FOR.get(op.name, ())
                    else t
                )
            else:
                args.append(x)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if any(t.requires_grad for t in tensors) and max(t.numel() for t in tensors) <= LARGEST:
            yield tuple(args), params


def size(args: tuple[Any, ...]) -> int:
    """Elements of its tensors."""
    return sum(a.numel() for a in args if isinstance(a, torch.Tensor))


def running(op: Op, params: tuple[Any, ...]) -> Callable[..., Any]:
    """The record's call, of inputs and with results of which differences can be taken."""
    before, after = BEFORE.get(op.name), AFTER.get(op.name)

    def run(*args: Any) -> Any:
        found = call(op, args if before is None else before(*args), params)
        return found if after is None else after(*found)

    return run


@pytest.mark.parametrize("op", differentiable(), ids=lambda op: op.name)
def test_derivative(op: Op) -> None:
    checked, unlike = 0, UNLIKE_DIFFERENCES.get(op.name, lambda params: False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (float64, complex128):
            drawn = list(samples(op, kind)) if kind in op.dtypes else []
            smallest = min([size(args) for args, _ in drawn], default=0)
            fast = False
            for args, params in drawn:
                if unlike(params) or size(args) > max(ONCE, smallest):
                    continue
                run = running(op, params)
                try:
                    torch.autograd.gradcheck(run, args, nondet_tol=1e-12, fast_mode=fast)
                    if size(args) <= max(TWICE, smallest):
                        torch.autograd.gradgradcheck(run, args, nondet_tol=1e-12, fast_mode=fast)
                except (NotImplementedError, RuntimeError) as error:
                    if not any(text in str(error) for text in REFUSED):
                        raise
                checked += 1
                fast |= (
                    not EXHAUSTIVE and size(args) == smallest
                )  # from now on a combination of all derivatives
    assert checked, "no sample was checked: its inputs are too large or take no gradient"


@pytest.mark.parametrize("fast_mode", [False, True])
def test_gradcheck_notices_a_wrong_derivative(fast_mode: bool) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    with pytest.raises(torch.autograd.gradcheck.__globals__["GradcheckError"], match="Jacobian mismatch"):
        torch.autograd.gradcheck(Wrong.apply, (x,), fast_mode=fast_mode)
    assert not torch.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False, fast_mode=fast_mode)


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
@pytest.mark.parametrize("wrong", range(6))
def test_fast_gradcheck_notices_one_wrong_element(kind: Any, wrong: int) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            factor = torch.ones(6, dtype=torch.float64)
            factor[wrong] = error
            return 3 * grad * (x * x).conj() * factor

    x = torch.tensor([2.0, 3, -1, 0.5, 4, 1], dtype=kind)
    x = (x * (1 + 0.5j) if kind.is_complex else x).requires_grad_()
    error = 1.0
    assert torch.autograd.gradcheck(Wrong.apply, (x,), fast_mode=True)
    error = 1.5
    assert not torch.autograd.gradcheck(Wrong.apply, (x,), fast_mode=True, raise_exception=False)


def test_gradcheck_of_a_function_that_takes_gradients():
    def slope(x):
        return torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)[0]

    x = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(slope, x) and torch.autograd.gradgradcheck(slope, x)
    assert torch.autograd.gradcheck(lambda v: v[:0], x) and not x.grad
