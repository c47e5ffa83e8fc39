"""Python's operators of tensors: `a + b`, `2 - a`, `a += b`, `a < b`, `-a`.

For operands other than tensors and scalars they return NotImplemented, so Python tries the other object's operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flambeau.core.dtype import INTEGRAL
from flambeau.ops.op import table
from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.pointwise import pointwise_logic as logic
from flambeau.ops.pointwise.dtype_promotion import TO_BOOL
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tensor.arguments.public import alias, method
from flambeau.tensor.arguments.torch_function import arm_for
from flambeau.tensor.call import binary, binary_into, call, call_into, unary, with_scalar
from flambeau.tensor.exchange.interop import from_numpy
from flambeau.tensor.functions.arithmetic import SCALARS, is_operand, operand, positive, powers, publish
from flambeau.tensor.functions.joining import flip
from flambeau.tensor.tensor import Tensor


def _bind_operator(op: Pointwise, dunder: str) -> None:
    """Bind Python's operator `dunder` to an operator definition: a + b, 2 + b, a += b."""

    def forward(self: Tensor, other: Any) -> Any:
        kind = other.__class__
        if kind is Tensor:
            return binary(op, self, other)
        if kind in SCALARS:
            return with_scalar(op, self, other)
        if not is_operand(other):
            return forward(self, other) if arm_for((other,)) else NotImplemented
        return call(op, (self, operand(other, op.name, "other", 1)))

    def call_reflected(self: Tensor, other: Any) -> Any:
        if not is_operand(other):
            return call_reflected(self, other) if arm_for((other,)) else NotImplemented
        return call(op, (operand(other, op.name, "other", 1), self))

    def in_place(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            return binary_into(op, self, self, other, False)
        if not is_operand(other):
            return in_place(self, other) if arm_for((other,)) else NotImplemented
        return call_into(op, (self,), (self, operand(other, op.name, "other", 1)))

    publish(forward, f"__{dunder}__", op.summary, method)
    if op is not arithmetic.div:
        publish(call_reflected, f"__r{dunder}__", op.summary, method)
    publish(in_place, f"__i{dunder}__", op.summary, method)


def _bind_comparison(op: Pointwise, dunder: str) -> None:
    """Bind Python's comparison `dunder`: a < b, a == b. As in PyTorch, only `==` accepts a NumPy array."""

    def compare(self: Tensor, other: Any) -> Any:
        kind = other.__class__
        if kind is Tensor:
            return binary(op, self, other)
        if kind in SCALARS:
            return with_scalar(op, self, other)
        if is_operand(other):
            return call(op, (self, operand(other, op.name, "other", 1)))
        if op is logic.eq and isinstance(other, np.ndarray) and other.dtype.kind in "biufc":
            return binary(op, self, from_numpy(other))
        return compare(self, other) if arm_for((other,)) else NotImplemented

    publish(compare, f"__{dunder}__", op.summary, method)


for _op in table.values():
    if isinstance(_op, Pointwise) and _op.forms.operator:
        (_bind_comparison if _op.promotion is TO_BOOL else _bind_operator)(_op, _op.forms.operator)
Tensor.__array_priority__ = 1000  # NumPy's scalars and arrays then call the tensor's operator


@method
def __rdiv__(self: Tensor, other: Any) -> Any:
    """Return other / self, rounded as PyTorch rounds it: the reciprocal first."""
    if is_operand(other, np.ndarray):
        return unary(functions.reciprocal, self) * other
    return __rdiv__(self, other) if arm_for((other,)) else NotImplemented


alias("__rtruediv__", __rdiv__, as_function=False)


@method
def __pow__(self: Tensor, exponent: Any) -> Any:
    if exponent.__class__ in SCALARS or is_operand(exponent):
        return self.pow(exponent)
    return __pow__(self, exponent) if arm_for((exponent,)) else NotImplemented


@method
def __rpow__(self: Tensor, base: Any) -> Any:
    if is_operand(base):
        return call(arithmetic.pow_, powers(base, self, "pow"))
    return __rpow__(self, base) if arm_for((base,)) else NotImplemented


@method
def __ipow__(self: Tensor, exponent: Any) -> Any:
    return self.pow_(exponent) if is_operand(exponent) else NotImplemented


@method
def __neg__(self: Tensor) -> Any:
    return unary(arithmetic.neg, self)


@method
def __pos__(self: Tensor) -> Any:
    return positive(self)


@method
def __abs__(self: Tensor) -> Any:
    return unary(arithmetic.abs_, self)


@method
def __invert__(self: Tensor) -> Any:
    if self.dtype.category > INTEGRAL:
        raise TypeError("~ (operator.invert) is only implemented on integer and Boolean-type tensors")
    return unary(logic.bitwise_not, self)


@method
def __contains__(self: Tensor, element: Any) -> bool:
    if not is_operand(element):
        raise RuntimeError(
            f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element)}."
        )
    return bool((self == element).any().item())


# -- as a sequence ------------------------------------------------------------------------------------------


@method
def __iter__(self: Tensor) -> Iterator[Tensor]:
    if not self.meta.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return iter(self.unbind(0))


@method
def __reversed__(self: Tensor) -> Tensor:
    return flip(self, 0) if self.meta.ndim else self


@method
def __delitem__(self: Tensor, index: Any) -> None:
    raise TypeError("Tensor does not support deleting items")
