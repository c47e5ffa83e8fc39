"""Comparisons, predicates, logic, bits, and choosing by a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, bool_, dtype, float8_e4m3fn
from flambeau.core.meta import Meta
from flambeau.ops.cache_blocks import choose
from flambeau.ops.derivative_helpers import refuse_derivative
from flambeau.ops.op import Derivative, Operand
from flambeau.ops.pointwise.dtype_promotion import ALL, BITS, INTEGERS, REALS, TO_BOOL, WIDE_UNSIGNED
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.pointwise.pointwise_body import Into
from flambeau.ops.pointwise.public_forms import BY_HAND, NO_IN_PLACE, USUAL, PublicForms

# -- comparisons ----------------------------------------------------------------------------------------

_compare = partial(pointwise, arity=2, promotion=TO_BOOL, scalars=(1,))

eq = _compare(
    "eq",
    np.equal,
    summary="Return True where input equals other.",
    dtypes=DTYPES,
    cuda="a == b",
    forms=PublicForms(operator="eq"),
)
ne = _compare(
    "ne",
    np.not_equal,
    summary="Return True where input differs from other.",
    dtypes=DTYPES,
    cuda="a != b",
    forms=PublicForms(operator="ne", aliases=("not_equal",)),
)
lt = _compare(
    "lt",
    np.less,
    summary="Return True where input is less than other.",
    dtypes=REALS,
    cuda="a < b",
    forms=PublicForms(operator="lt", aliases=("less",)),
)
le = _compare(
    "le",
    np.less_equal,
    summary="Return True where input is at most other.",
    dtypes=REALS,
    cuda="a <= b",
    forms=PublicForms(operator="le", aliases=("less_equal",)),
)
gt = _compare(
    "gt",
    np.greater,
    summary="Return True where input is greater than other.",
    dtypes=REALS,
    cuda="a > b",
    forms=PublicForms(operator="gt", aliases=("greater",)),
)
ge = _compare(
    "ge",
    np.greater_equal,
    summary="Return True where input is at least other.",
    dtypes=REALS,
    cuda="a >= b",
    forms=PublicForms(operator="ge", aliases=("greater_equal",)),
)


def _one_dtype(common: dtype, operands: Sequence[Operand]) -> None:
    a, b = operands
    if isinstance(a, Meta) and isinstance(b, Meta) and a.dtype is not b.dtype:
        raise RuntimeError(f"{a.dtype.torch_name} did not match {b.dtype.torch_name}")


def _isclose(a: Any, b: Any, rtol: float, atol: float, equal_nan: bool) -> Any:
    close = a == b
    if equal_nan:
        close |= (a != a) & (b != b)
    if rtol == 0 and atol == 0:
        return close
    if a.dtype.kind in "biu":
        a, b = a.astype(np.float64), b.astype(np.float64)
    gap = np.abs(a - b)
    return close | (np.isfinite(gap) & (gap <= atol + np.abs(rtol * b)))


isclose = pointwise(
    "isclose",
    _isclose,
    2,
    "Return True where |input - other| <= atol + rtol * |other|.",
    promotion=TO_BOOL,
    check=_one_dtype,
    dtypes=(*ALL, *WIDE_UNSIGNED),
    params=((1e-5, 1e-8, False), (0.5, 0.1, True)),
    flops=4,
    cuda="close(a, b, k0, k1, k2)",
    constants=lambda static: (float(static[0]), float(static[1]), int(static[2])),
    forms=BY_HAND,
)


# -- predicates -----------------------------------------------------------------------------------------

_holds = partial(pointwise, arity=1, promotion=TO_BOOL, dtypes=(*ALL, *WIDE_UNSIGNED))
_HAVE_INFINITY = tuple(d for d in DTYPES if d is not float8_e4m3fn)


def _only_floats(test: Callable[[Any], Any], otherwise: bool) -> Callable[[Any], Any]:
    return lambda x: test(x) if x.dtype.kind in "fc" else np.full(x.shape, otherwise)


def _no_complex(name: str) -> Callable[[dtype, Sequence[Operand]], None]:
    def check(common: dtype, operands: Sequence[Operand]) -> None:
        if common.is_complex:
            raise RuntimeError(f"{name} does not support complex inputs.")

    return check


def _signbit(x: Any) -> Any:
    return np.signbit(x) if x.dtype.kind == "f" else x < x.dtype.type(0)


isnan = _holds(
    "isnan",
    _only_floats(np.isnan, False),
    summary="Return True where the element is NaN.",
    dtypes=DTYPES,
    cuda="is_nan(a)",
    forms=NO_IN_PLACE,
    sparse="values",
)
isinf = _holds(
    "isinf",
    _only_floats(np.isinf, False),
    summary="Return True where the element is infinite.",
    dtypes=_HAVE_INFINITY,
    cuda="is_inf(a)",
    forms=NO_IN_PLACE,
    sparse="values",
)
isfinite = _holds(
    "isfinite",
    _only_floats(np.isfinite, True),
    summary="Return True where the element is finite.",
    dtypes=_HAVE_INFINITY,
    cuda="is_finite(a)",
    forms=NO_IN_PLACE,
)
isposinf = _holds(
    "isposinf",
    _only_floats(lambda x: x == np.inf, False),
    summary="Return True where the element is +infinity.",
    check=_no_complex("isposinf"),
    cuda="is_inf(a) && a > 0",
    forms=NO_IN_PLACE,
    sparse="values",
)
isneginf = _holds(
    "isneginf",
    _only_floats(lambda x: x == -np.inf, False),
    summary="Return True where the element is -infinity.",
    check=_no_complex("isneginf"),
    cuda="is_inf(a) && a < 0",
    forms=NO_IN_PLACE,
    sparse="values",
)


def _signbit_real(common: dtype, operands: Sequence[Operand]) -> None:
    if common.is_complex:
        raise NotImplementedError("signbit is not implemented for complex tensors.")


signbit = _holds(
    "signbit",
    _signbit,
    summary="Return True where the element's sign is negative.",
    check=_signbit_real,
    cuda="sign_bit(a)",
    forms=NO_IN_PLACE,
    sparse="values",
)


ANY_BITS = (*BITS, *WIDE_UNSIGNED)

# -- logic and bits -------------------------------------------------------------------------------------

logical_and = pointwise(
    "logical_and",
    np.logical_and,
    2,
    "Return True where both are nonzero.",
    promotion=TO_BOOL,
    cuda="nonzero(a) && nonzero(b)",
    recorded_in_place=False,
)
logical_or = pointwise(
    "logical_or",
    np.logical_or,
    2,
    "Return True where either is nonzero.",
    promotion=TO_BOOL,
    cuda="nonzero(a) || nonzero(b)",
    recorded_in_place=False,
)
logical_xor = pointwise(
    "logical_xor",
    np.logical_xor,
    2,
    "Return True where exactly one is nonzero.",
    promotion=TO_BOOL,
    cuda="nonzero(a) != nonzero(b)",
    recorded_in_place=False,
)
logical_not = _holds(
    "logical_not",
    np.logical_not,
    summary="Return True where the element is zero.",
    dtypes=ALL,
    cuda="!nonzero(a)",
    recorded_in_place=False,
)

bitwise_and = pointwise(
    "bitwise_and",
    np.bitwise_and,
    2,
    "Return the bits set in both.",
    dtypes=ANY_BITS,
    scalars=(0, 1),
    cuda="a & b",
    forms=PublicForms(operator="and"),
)
bitwise_or = pointwise(
    "bitwise_or",
    np.bitwise_or,
    2,
    "Return the bits set in either.",
    dtypes=ANY_BITS,
    scalars=(0, 1),
    cuda="a | b",
    forms=PublicForms(operator="or"),
)
bitwise_xor = pointwise(
    "bitwise_xor",
    np.bitwise_xor,
    2,
    "Return the bits set in one of them.",
    dtypes=ANY_BITS,
    scalars=(0, 1),
    cuda="a ^ b",
    forms=PublicForms(operator="xor"),
)
bitwise_not = pointwise(
    "bitwise_not", np.invert, 1, "Return each element with its bits inverted.", dtypes=BITS, cuda="turned(a)"
)


def _shift_left(a: Any, b: Any) -> Any:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)


def _shift_right(a: Any, b: Any) -> Any:
    """Return a right shift. Too large or negative amounts leave only the sign."""
    bits = a.dtype.itemsize * 8
    most = bits - (a.dtype.kind == "i")
    if a.dtype.kind == "u":
        return np.where((b >= 0) & (b < bits), np.right_shift(a, np.where((b >= 0) & (b < bits), b, 0)), 0)
    return np.right_shift(a, np.where((b >= 0) & (b < most), b, most))


bitwise_left_shift = pointwise(
    "bitwise_left_shift",
    _shift_left,
    2,
    "Return input * 2 ** other, in the dtype's bits.",
    dtypes=INTEGERS,
    stub="lshift_cpu",
    scalars=(0, 1),
    low=0,
    cuda="shift_left(a, b)",
    forms=PublicForms(operator="lshift"),
)
bitwise_right_shift = pointwise(
    "bitwise_right_shift",
    _shift_right,
    2,
    "Return input / 2 ** other, rounded down.",
    dtypes=INTEGERS,
    stub="rshift_cpu",
    scalars=(0, 1),
    low=0,
    cuda="shift_right(a, b)",
    forms=PublicForms(operator="rshift"),
)


# -- choice ---------------------------------------------------------------------------------------------


def _same_dtypes(common: dtype, operands: Sequence[Operand]) -> None:
    a, b = operands
    if common.is_complex:
        raise RuntimeError("heaviside is not yet implemented for complex tensors.")
    if isinstance(a, Meta) and isinstance(b, Meta) and a.dtype is not b.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


def _heaviside(x: Any, values: Any) -> Any:
    return np.where(x == 0, values, (x > 0).astype(x.dtype))


heaviside = pointwise(
    "heaviside",
    _heaviside,
    2,
    "Return 0 for negative input, 1 for positive, the value given for 0.",
    check=_same_dtypes,
    cuda="a == 0 ? b : T(a > 0)",
    derivative=refuse_derivative("heaviside"),
    forms=PublicForms(second="values"),
)


def _condition_is_bool(common: dtype, operands: Sequence[Operand]) -> None:
    condition = operands[0]
    if isinstance(condition, Meta) and condition.dtype is not bool_:
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{condition.dtype.torch_name}"
        )


def _choosing(
    name: str, summary: str, derivative: Derivative, leading: int = 0, forms: PublicForms = USUAL
) -> Pointwise:
    return pointwise(
        name, Into(choose), 3, summary, dtypes=DTYPES, check=_condition_is_bool, promoting=slice(1, None), conditions=1,
        scalars=(1, 2), leading=leading, flops=0, cuda="a ? b : c", derivative=derivative, forms=forms,
    )  # fmt: skip


where = _choosing(
    "where",
    "Return input where the condition holds, else other.",
    Derivative(None, lambda grad, a: grad.where(a, 0), lambda grad, a: grad.where(~a, 0)),
    forms=BY_HAND,
)
kept: Pointwise = _choosing(
    "where.kept",
    "`where`, with dimensions in the order of the input's: gradients that a condition on another tensor lets through.",
    Derivative(
        None, lambda grad, a, call: call(kept, (a, grad, 0)), lambda grad, a, call: call(kept, (a, 0, grad))
    ),
    leading=1,
)
