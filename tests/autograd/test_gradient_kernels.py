"""The kernel of a pointwise operator's gradients computes what the formulas of its record compute, one by one.

In the same bits and the same order of dimensions, for operands of any layouts: where the kernel's order could be
another one, the formulas run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau as torch
from flambeau.ops.op import Op, table
from flambeau.ops.pointwise.gradient_kernels import GradientKernels
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tensor.call import call
from flambeau.testing.operator_properties import (
    channels_innermost,
    maker,
    plain,
    reversed_dims,
    tensor_of,
    with_gaps,
)

SHAPES = ((2, 3, 4, 5), (3, 1, 1), (2, 1, 4, 5), (5,), (1, 3, 4, 5), ())
LAYOUTS = (plain, reversed_dims, with_gaps, channels_innermost)


def _kernel(op: Op) -> GradientKernels | None:
    if not isinstance(op, Pointwise):
        return None
    kernel: GradientKernels | None = op.joint_formula([True] * op.arity)
    return kernel


OPERATORS = sorted(name for name, op in table.items() if _kernel(op) is not None)


def test_operators_of_several_steps_have_a_kernel() -> None:
    assert {"mish", "smooth_l1_loss", "erf", "div", "sin", "logaddexp"} <= set(OPERATORS)
    assert "add" not in OPERATORS and "neg" not in OPERATORS  # the gradient is one operator, or none


@st.composite
def _tensors(draw: st.DrawFn, op: Pointwise, kind: torch.dtype) -> list[Any]:
    sample = next(iter(op.samples(maker(kind, 0), kind)))[0]
    make, out = maker(kind, draw(st.integers(0, 99))), []
    for at, x in enumerate(sample):
        if not isinstance(x, np.ndarray):
            out.append(x)
            continue
        low, high = float(x.min()), float(x.max())
        array = make(*draw(st.sampled_from(SHAPES)), low=min(low, high - 1e-3), high=high)
        out.append(tensor_of(array != 0 if at < op.conditions else array, draw(st.sampled_from(LAYOUTS))))
    return out


def _layout(x: Any) -> Any:
    return None if x is None else (x.shape, x.stride())


def _bits(x: Any) -> Any:
    return None if x is None else x.contiguous().numpy().tobytes()


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=1000 if EXHAUSTIVE else 25)
@given(data=st.data())
def test_kernel_computes_what_the_formulas_compute(name: str, data: st.DataObject) -> None:
    op: Any = table[name]
    kind = data.draw(st.sampled_from((torch.float32, torch.float64)))
    operands = data.draw(_tensors(op, kind))
    leaves = [x for x in operands if isinstance(x, torch.Tensor) and x.dtype.is_floating_point]
    asked = [x for x in leaves if data.draw(st.booleans())] or leaves
    for x in asked:
        x.requires_grad_()
    out = call(op, operands)
    grad = tensor_of(maker(kind, 1)(*out.shape), data.draw(st.sampled_from(LAYOUTS)))
    if data.draw(st.booleans()):
        grad = torch.ones(()).to(kind).expand(out.shape)
    by_kernel = torch.autograd.grad(out, asked, grad, allow_unused=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientKernels, "_fits", lambda *given: False)
        by_formulas = torch.autograd.grad(call(op, operands), asked, grad, allow_unused=True)
    assert [_layout(x) for x in by_kernel] == [_layout(x) for x in by_formulas]
    assert [_bits(x) for x in by_kernel] == [_bits(x) for x in by_formulas]
