"""Arithmetic: sums, products, quotients and their remainders, powers, bounds, combinations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import DTYPES, FLOATING, INTEGRAL, bool_, dtype
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA, WIDEST_ON_CUDA
from flambeau.ops.derivative_helpers import conj, refuse_derivative, zeros
from flambeau.ops.op import NOT_DIFFERENTIABLE, Derivative, Operand, overload_names
from flambeau.ops.pointwise.dtype_promotion import (
    ALL,
    FLOAT8,
    FLOATING_OR_COMPLEX,
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    TO_DOUBLE,
    TO_FLOAT,
    TO_REAL,
)
from flambeau.ops.pointwise.pointwise import pointwise
from flambeau.ops.pointwise.pointwise_body import Array, Compute, Into, Lazy
from flambeau.ops.pointwise.public_forms import (
    BY_HAND,
    BY_HAND_AND_FOREACH,
    MATH,
    NO_IN_PLACE,
    TORCH_IN_PLACE,
    PublicForms,
)
from flambeau.ops.work import element_work

NUMBERS_OR_COMPLEX = (*INTEGERS, *FLOATING_OR_COMPLEX)


def is_bool(x: Operand) -> bool:
    return x is bool or (isinstance(x, Meta) and x.dtype is bool_)


# -- sums and products ----------------------------------------------------------------------------------


def _no_bool_difference(common: dtype, operands: Sequence[Operand]) -> None:
    first, second = operands[:2]
    if is_bool(first) and is_bool(second):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead."
        )
    if is_bool(first) or is_bool(second):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


def _no_bool_negation(common: dtype, operands: Sequence[Operand]) -> None:
    if common is bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


def _alpha_fits(common: dtype, operands: Sequence[Operand]) -> None:
    alpha = operands[2]
    if alpha is bool and common is not bool_:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if common.category <= 1 and alpha in (float, complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if not common.is_complex and alpha is complex:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


def _difference_alpha_fits(common: dtype, operands: Sequence[Operand]) -> None:
    _no_bool_difference(common, operands)
    _alpha_fits(common, operands)


def _no_float8_scalars(common: dtype, operands: Sequence[Operand]) -> None:
    if common in FLOAT8 and not all(isinstance(x, Meta) for x in operands):
        raise NotImplementedError(f"\"mul_cpu_reduced_float\" not implemented for '{common.torch_name}'")


add = pointwise(
    "add",
    np.add,
    2,
    "Return the sum of input and other, with other multiplied by alpha first.",
    stub="add_stub",
    scalars=(0, 1),
    wide_scalars=True,
    cuda="add(a, b)",
    derivative=Derivative(lambda grad: grad, lambda grad: grad),
    forms=BY_HAND_AND_FOREACH.with_(operator="add"),
)
add_alpha = pointwise(
    "add.alpha",
    Into(lambda a, b, alpha, out=None: np.add(a, b * alpha, out=out)),
    3,
    "Return input + alpha * other.",
    stub="add_stub",
    check=_alpha_fits,
    promoting=slice(2),
    checked=(2,),
    wide_scalars=True,
    flops=2,
    examples=((1,),),
    scalars=(0, 1),
    cuda="add(a, mul(c, b))",
    derivative=Derivative(lambda grad: grad, lambda grad, c: grad * conj(c), name="AddBackward0"),
)
moving_average = pointwise(
    "batch_norm.moving_average",
    lambda a, b, keep, share: a * keep + b * share,
    4,
    "Return input times keep, plus other times share.",
    stub="add_stub",
    dtypes=FLOATS,
    promoting=slice(2),
    flops=3,
    examples=((0.9, 0.1),),
    cuda="add(mul(a, c), mul(b, d))",
    derivative=NOT_DIFFERENTIABLE,
    work=element_work.within_another,
)
sub = pointwise(
    "sub",
    np.subtract,
    2,
    "Return the difference of input and other, with other multiplied by alpha first.",
    stub="sub_stub",
    check=_no_bool_difference,
    dtypes=NUMBERS_OR_COMPLEX,
    scalars=(0, 1),
    wide_scalars=True,
    cuda="sub(a, b)",
    derivative=Derivative(lambda grad: grad, lambda grad: -grad),
    forms=BY_HAND_AND_FOREACH.with_(operator="sub", aliases=("subtract",)),
)
sub_alpha = pointwise(
    "sub.alpha",
    Into(lambda a, b, alpha, out=None: np.subtract(a, b * alpha, out=out)),
    3,
    "Return input - alpha * other.",
    stub="sub_stub",
    check=_difference_alpha_fits,
    dtypes=NUMBERS_OR_COMPLEX,
    promoting=slice(2),
    checked=(2,),
    wide_scalars=True,
    flops=2,
    examples=((2,),),
    scalars=(0, 1),
    cuda="sub(a, mul(c, b))",
    derivative=Derivative(lambda grad: grad, lambda grad, c: -grad * conj(c), name="SubBackward0"),
)
mul = pointwise(
    "mul",
    np.multiply,
    2,
    "Return the product of input and other.",
    stub="mul_cpu",
    dtypes=DTYPES,
    scalars=(0, 1),
    wide_scalars=True,
    check=_no_float8_scalars,
    cuda="mul(a, b)",
    derivative=Derivative(lambda grad, b: grad * conj(b), lambda grad, a: grad * conj(a)),
    forms=BY_HAND_AND_FOREACH.with_(operator="mul", aliases=("multiply",)),
)
neg = pointwise(
    "neg",
    np.negative,
    1,
    "Return each element with its sign turned.",
    dtypes=NUMBERS_OR_COMPLEX,
    check=_no_bool_negation,
    cuda="neg(a)",
    derivative=Derivative(lambda grad: -grad),
    forms=MATH.with_(aliases=("negative",)),
    sparse="linear",
)
abs_ = pointwise(
    "abs",
    np.abs,
    1,
    "Return the absolute value of each element.",
    promotion=TO_REAL,
    dtypes=(*NUMBERS_OR_COMPLEX, *FLOAT8),
    cuda="absolute(a)",
    derivative=Derivative(lambda grad, a: grad * a.sgn()),
    forms=PublicForms(in_place=False, foreach=True, aliases=("absolute",)),
    sparse="values",
)


# -- quotients ------------------------------------------------------------------------------------------


# Note [Integer division by zero]
# On the CPU it raises, as PyTorch's does. A GPU has no such trap: PyTorch's documentation promises no value. What its
# users and its own tests saw on NVIDIA GPUs, for both quotients and remainders, is all ones (-1; 255 in uint8), and
# the lower half all ones (4294967295) where a dividend of 64 bits is not negative. Virtual GPUs give just that.


def _by_integers(floats: Callable[..., Array], integers: Callable[..., Array]) -> Lazy:
    """Return the reference implementation of a division. See Note [Integer division by zero]."""

    def load(launch: Launch) -> Compute | Into:
        if launch.params[0].category == FLOATING:
            return floats
        if launch.outputs[0].device is CPU:
            if isinstance(integers, np.ufunc):
                return Into(lambda a, b, out=None: integers(a, _nonzero(b), out=out))
            return lambda a, b: integers(a, _nonzero(b))
        return lambda a, b: np.where(
            b == 0, _of_zero_divisor(a), integers(a, np.where(b == 0, b.dtype.type(1), b))
        )

    return Lazy(load)


def _nonzero(divisor: Any) -> Any:
    if not (divisor.all() if divisor.ndim else divisor):
        raise RuntimeError("ZeroDivisionError")
    return divisor


def _of_zero_divisor(dividend: Any) -> Any:
    ones = ~dividend.dtype.type(0)
    return np.where(dividend < 0, ones, 0xFFFFFFFF) if dividend.dtype == np.int64 else ones


def _truncated_quotient(a: Any, b: Any) -> Array:
    quotient = a // b
    return np.asarray(quotient + ((a % b != 0) & ((a < 0) != (b < 0))))


def _float_remainder(a: Any, b: Any) -> Array:
    left = np.fmod(a, b)  # the sign of zero is fmod's, where NumPy's remainder takes the divisor's
    return np.where((left != 0) & ((b < 0) != (left < 0)), left + b, left)


div = pointwise(
    "div",
    np.true_divide,
    2,
    "Return the quotient of input and other.",
    stub="div_true_cpu",
    promotion=TO_FLOAT,
    dtypes=FLOATING_OR_COMPLEX,
    scalars=(0, 1),
    wide_scalars=True,
    cuda="a / b",
    derivative=Derivative(lambda grad, b: grad / conj(b), lambda grad, a, b: grad * conj(-(a / b / b))),
    forms=BY_HAND_AND_FOREACH.with_(operator="truediv", aliases=("divide", "true_divide")),
)
_floored = partial(
    pointwise,
    compute=_by_integers(np.floor_divide, np.floor_divide),
    arity=2,
    stub="div_floor_cpu",
    dtypes=NUMBERS,
    low=1,
    scalars=(0, 1),
    cuda="floor_divide(a, b)",
    work=element_work.formula(30.0, 0.6),
)
div_floor = _floored(
    "div.floor", summary="Return the quotient rounded down.", derivative=Derivative(zeros, zeros)
)
floor_divide = _floored(
    "floor_divide",
    summary="Return the quotient rounded down; without a derivative, as in PyTorch.",
    derivative=refuse_derivative("floor_divide"),
    forms=BY_HAND.with_(operator="floordiv"),
)
div_trunc = pointwise(
    "div.trunc",
    _by_integers(lambda a, b: np.trunc(a / b), _truncated_quotient),
    2,
    "Return the quotient rounded towards zero.",
    stub="div_trunc_cpu",
    dtypes=NUMBERS,
    low=1,
    scalars=(0, 1),
    cuda="quotient_trunc(a, b)",
    derivative=Derivative(zeros, zeros),
)


def _remainder_back(grad: Any, a: Any, b: Any) -> Any:
    """Return the derivative with respect to the divisor, also for infinities, whose quotient has no whole part."""
    quotient = (a / b).floor() if isinstance(a, bool | int | float) else a.div(b, rounding_mode="floor")
    return -grad * quotient


remainder = pointwise(
    "remainder",
    _by_integers(_float_remainder, np.remainder),
    2,
    "Return the remainder of input divided by other, with other's sign.",
    dtypes=NUMBERS,
    scalars=(0, 1),
    low=1,
    cuda="remainder_(a, b)",
    derivative=Derivative(
        lambda grad: grad, _remainder_back, name=overload_names("RemainderBackward1", "RemainderBackward0")
    ),
    forms=PublicForms(operator="mod"),
)
fmod = pointwise(
    "fmod",
    _by_integers(np.fmod, np.fmod),
    2,
    "Return the remainder of input divided by other, with input's sign.",
    dtypes=NUMBERS,
    scalars=(1,),
    low=1,
    cuda="fmod_any(a, b)",
    derivative=Derivative(
        lambda grad: grad,
        lambda grad, a, b: -grad * (a / b).trunc(),
        name=overload_names("FmodBackward1", "FmodBackward0"),
    ),
)


# -- powers ---------------------------------------------------------------------------------------------

_KNOWN_POWERS: dict[Any, Callable[..., Any]] = {
    0.5: np.sqrt,
    2: np.square,
    3: lambda x, out: np.multiply(x * x, x, out),
    -0.5: lambda x, out: np.divide(1, np.sqrt(x), out),
    -1: np.reciprocal,
    -2: lambda x, out: np.divide(1, np.square(x), out),
}


def _no_bool_tensors(common: dtype, operands: Sequence[Operand]) -> None:
    if common is bool_ and isinstance(operands[1], Meta):
        raise NotImplementedError("\"pow\" not implemented for 'Bool'")


def _power(launch: Launch) -> Compute | Into:
    kind = launch.params[0]
    if kind is bool_:
        return lambda base, exponent: base | ~exponent
    return _integer_power if kind.category == INTEGRAL else Into(_float_power)


def _float_power(base: Any, exponent: Any, out: Any = None) -> Any:
    if base.ndim and isinstance(exponent, np.generic):
        known = _KNOWN_POWERS.get(exponent)
        if known is not None:
            return known(base, out)
    return np.power(base, exponent, out)


def _integer_power(base: Any, exponent: Any) -> Any:
    """Return integer powers. Negative exponents give 0, except for bases 1 and -1."""
    result = np.power(base, np.maximum(exponent, 0))
    if np.any(exponent < 0):
        sign = np.where(exponent % 2 == 0, 1, base)
        inverse = np.where(np.abs(base) == 1, sign, 0)
        result = np.where(exponent < 0, inverse, result)
    return result


def _power_text(launch: Launch) -> str:
    scalar = not isinstance(launch.inputs[1], Meta) and isinstance(launch.inputs[0], Meta)
    return f"pow_any(a, b, {str(scalar).lower()})"


def _base_back(grad: Any, a: Any, b: Any) -> Any:
    if isinstance(b, bool | int | float | complex):
        if b == 0:
            return zeros(grad)
        lower = -(2.0**63) if b == -(1 << 63) else b - 1  # b - 1 has more than 63 bits
        return grad * conj(2 * a if b == 2 else b * a**lower)
    if b.dtype is bool_:
        b = b + 0
    slope = grad * conj(b * a ** (b - 1))
    return slope.masked_fill(b == 0, 0)


def _wide_base_back(grad: Any, a: Any, b: Any) -> Any:
    """Return the gradient with respect to the base of `float_power`, which converts it first."""
    is_number = isinstance(a, bool | int | float | complex)
    return _base_back(grad, a if is_number else a.to(dtype=grad.dtype), b)


def _exponent_back(grad: Any, a: Any, b: Any, out: Any) -> Any:
    """Return the gradient with respect to the exponent. log(a) is infinite at 0, where positive exponents have no
    effect.
    """
    still = (b.real if b.dtype.is_complex else b) >= 0
    if isinstance(a, bool | int | float | complex):
        if a == 0:
            return (out * -np.inf).masked_fill(still, 0) * grad
        return grad * conj(
            out * (np.log(complex(a)) if isinstance(a, complex) or a < 0 else float(np.log(a)))
        )
    is_real = b.dtype.is_complex and not a.dtype.is_complex
    base = a.to(b.dtype) if is_real else a  # the logarithm of a negative base is complex
    return (grad * conj(out * base.log())).masked_fill((a == 0) & still, 0)


def _power_name(metas: Sequence[Meta | None], params: tuple[Any, ...]) -> str:
    base, exponent = metas
    return "PowBackward2" if base is None else f"PowBackward{0 if exponent is None else 1}"


pow_ = pointwise(
    "pow",
    Lazy(_power),
    2,
    "Return input to the power of exponent.",
    work=element_work.formula(62.0, 0.75),
    dtypes=ALL,
    check=_no_bool_tensors,
    checked_narrow=(1,),
    flops=10,
    low=0,
    cuda=_power_text,
    derivative=Derivative(_base_back, _exponent_back, name=_power_name),
    autocast=FLOAT32_ON_CUDA,
    forms=BY_HAND_AND_FOREACH,
)
float_power = pointwise(
    "float_power",
    Into(_float_power),
    2,
    "Return input to the power of exponent, in double precision.",
    promotion=TO_DOUBLE,
    flops=10,
    low=0,
    cuda="power_(a, b)",
    derivative=Derivative(_wide_base_back, _exponent_back),
    forms=BY_HAND,
)


# -- bounds ---------------------------------------------------------------------------------------------


def _no_complex(name: str) -> Callable[[dtype, Sequence[Operand]], None]:
    def check(common: dtype, operands: Sequence[Operand]) -> None:
        if common.is_complex:
            raise RuntimeError(f"{name} not implemented for complex tensors.")

    return check


def _no_complex_clamp(common: dtype, operands: Sequence[Operand]) -> None:
    if common.is_complex:
        raise NotImplementedError("clamp is not supported for complex types")
    if common is bool_ and not all(isinstance(x, Meta) for x in operands):
        raise NotImplementedError("\"clamp_scalar_cpu\" not implemented for 'Bool'")


def _clamp(x: Any, low: Any, high: Any, out: Any = None) -> Any:
    if x.dtype.kind == "b":  # NumPy cannot clip bools
        return np.minimum(np.maximum(x, low), high, out=out)
    return x.clip(low, high, out=out)


def _share_at_ties(grad: Any, a: Any, b: Any) -> Any:
    """Return the gradient of the maximum or minimum of two operands. If both are equal, each receives half."""
    return (grad / 2).where(a == b, grad)


maximum = pointwise(
    "maximum",
    np.maximum,
    2,
    "Return the greater of input and other; NaN if either is.",
    dtypes=REALS,
    check=_no_complex("maximum"),
    cuda="greater(a, b)",
    derivative=Derivative(
        lambda grad, a, b: _share_at_ties(grad, a, b).where(~(a < b), 0),
        lambda grad, a, b: _share_at_ties(grad, a, b).where(~(a > b), 0),
    ),
    forms=NO_IN_PLACE,
)
minimum = pointwise(
    "minimum",
    np.minimum,
    2,
    "Return the lesser of input and other; NaN if either is.",
    dtypes=REALS,
    check=_no_complex("minimum"),
    cuda="lesser(a, b)",
    derivative=Derivative(
        lambda grad, a, b: _share_at_ties(grad, a, b).where(~(a > b), 0),
        lambda grad, a, b: _share_at_ties(grad, a, b).where(~(a < b), 0),
    ),
    forms=NO_IN_PLACE,
)
fmax = pointwise(
    "fmax",
    np.fmax,
    2,
    "Return the greater of input and other; a NaN yields to a number.",
    dtypes=REALS,
    check=_no_complex("fmax"),
    cuda="fmax_(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad.where((a >= b) | b.isnan(), 0),
        lambda grad, a, b: grad.where(~((a >= b) | b.isnan()), 0),
    ),
    forms=NO_IN_PLACE,
)
fmin = pointwise(
    "fmin",
    np.fmin,
    2,
    "Return the lesser of input and other; a NaN yields to a number.",
    dtypes=REALS,
    check=_no_complex("fmin"),
    cuda="fmin_(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad.where((a <= b) | b.isnan(), 0),
        lambda grad, a, b: grad.where(~((a <= b) | b.isnan()), 0),
    ),
    forms=NO_IN_PLACE,
)
clamp = pointwise(
    "clamp",
    Into(_clamp),
    3,
    "Return each element, or the bound that it passes.",
    dtypes=REALS,
    check=_no_complex_clamp,
    checked=(1, 2),
    flops=2,
    cuda="lesser(greater(a, b), c)",
    derivative=Derivative(
        lambda grad, a, b, c: grad.where((a >= b) & (a <= c), 0),
        lambda grad, a, b, c: grad.where((b < c) & (a < b), 0),
        lambda grad, a, b, c: grad.where((a > c) | (c < b), 0),
        name=overload_names("ClampBackward0", "ClampBackward1"),
    ),
    forms=PublicForms(bound=False, torch_in_place=True, aliases=("clip",)),
)
clamp_min = pointwise(
    "clamp_min",
    np.maximum,
    2,
    "Return each element, at least min.",
    dtypes=REALS,
    check=_no_complex_clamp,
    checked=(1,),
    cuda="greater(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad.where(a >= b, 0),
        lambda grad, a, b: grad.where(a < b, 0),
        name=overload_names("ClampBackward0", "ClampBackward1"),
    ),
    forms=PublicForms(bound=False, torch_in_place=True, foreach=True),
)
clamp_max = pointwise(
    "clamp_max",
    np.minimum,
    2,
    "Return each element, at most max.",
    dtypes=REALS,
    check=_no_complex_clamp,
    checked=(1,),
    cuda="lesser(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad.where(a <= b, 0),
        lambda grad, a, b: grad.where(a > b, 0),
        name=overload_names("ClampMaxBackward1", "ClampMaxBackward0"),
    ),
    forms=PublicForms(bound=False, torch_in_place=True, foreach=True),
)


# -- combinations ---------------------------------------------------------------------------------------

_TYPE_WORDS = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


def _one_dtype(common: dtype, operands: Sequence[Operand]) -> None:
    start, *rest = operands
    for name, x in zip(("end", "weight"), rest, strict=False):
        if isinstance(x, Meta) and isinstance(start, Meta) and x.dtype is not start.dtype:
            raise RuntimeError(
                f"expected dtype {_TYPE_WORDS.get(start.dtype.name, start.dtype.name)} for `{name}` "
                f"but got dtype {_TYPE_WORDS.get(x.dtype.name, x.dtype.name)}"
            )


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    gap = end - start  # computed from the nearer end, so that weight 1 gives `end` exactly
    near = np.abs(weight) < 0.5
    if np.ndim(near):
        return np.where(near, start + weight * gap, end - gap * (1 - weight))
    return start + weight * gap if near else end - gap * (1 - weight)


def _no_integer_quotient(common: dtype, operands: Sequence[Operand]) -> None:
    if all(isinstance(x, Meta) and x.dtype.category <= 1 for x in operands[1:3]):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform "
            "a true division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as "
            "(input + value * torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as "
            "(input + value * tensor1 / tensor2) for float inputs. The future addcdiv behavior is just the latter "
            "implementation: (input + value * tensor1 / tensor2), for all dtypes."
        )


lerp = pointwise(
    "lerp",
    _lerp,
    3,
    "Return the point between start and end at weight.",
    stub="lerp_kernel_scalar",
    check=_one_dtype,
    dtypes=FLOATING_OR_COMPLEX,
    promoting=slice(2),
    wide_scalars=True,
    flops=3,
    examples=((0.25,), (0.75,)),
    cuda="lerp_(a, b, c)",
    derivative=Derivative(
        lambda grad, c: grad * (1 - conj(c)),
        lambda grad, c: grad * conj(c),
        lambda grad, a, b: grad * conj(b - a),
        name=lambda metas, params: f"LerpBackward{0 if metas[2] is None else 1}",
    ),
    forms=BY_HAND,
)
addcmul = pointwise(
    "addcmul",
    lambda x, a, b, value: x + value * a * b,
    4,
    "Return input + value * tensor1 * tensor2.",
    stub="addcmul_cpu_out",
    dtypes=NUMBERS_OR_COMPLEX,
    promoting=slice(3),
    wide_scalars=True,
    checked=(3,),
    flops=3,
    examples=((1,), (2,)),
    cuda="add(a, mul(mul(d, b), c))",
    derivative=Derivative(
        lambda grad: grad, lambda grad, c, d: grad * conj(c * d), lambda grad, b, d: grad * conj(b * d)
    ),
    autocast=WIDEST_ON_CUDA,
    forms=BY_HAND_AND_FOREACH,
)
addcdiv = pointwise(
    "addcdiv",
    lambda x, a, b, value: x + value * a / b,
    4,
    "Return input + value * tensor1 / tensor2.",
    stub="addcdiv_cpu_out",
    check=_no_integer_quotient,
    dtypes=FLOATING_OR_COMPLEX,
    promoting=slice(3),
    wide_scalars=True,
    checked=(3,),
    flops=3,
    examples=((1,), (2,)),
    cuda="a + d * b / c",
    derivative=Derivative(
        lambda grad: grad,
        lambda grad, c, d: grad * conj(d / c),
        lambda grad, b, c, d: -grad * conj(d * b / (c * c)),
    ),
    autocast=WIDEST_ON_CUDA,
    forms=BY_HAND_AND_FOREACH,
)
gcd = pointwise(
    "gcd",
    np.gcd,
    2,
    "Return the greatest common divisor.",
    dtypes=INTEGERS,
    cuda="gcd_(a, b)",
    derivative=NOT_DIFFERENTIABLE,
    forms=TORCH_IN_PLACE,
)
lcm = pointwise(
    "lcm",
    lambda a, b: np.abs(np.lcm(a, b)),
    2,
    "Return the least common multiple; never negative.",
    dtypes=INTEGERS,
    cuda="lcm_(a, b)",
    derivative=NOT_DIFFERENTIABLE,
    forms=TORCH_IN_PLACE,
)
