"""Functions of real and complex numbers: roots, exponentials, circular, special, rounding, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from math import log as log_of
from math import pi
from math import sqrt as root
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, bool_, dtype, float32, float64
from flambeau.core.layout import broadcast_shapes
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.ops.autocast_rules import FLOAT32_ON_CPU, FLOAT32_ON_CUDA, WIDEST_ON_CUDA
from flambeau.ops.cache_blocks import choose, in_blocks
from flambeau.ops.derivative_helpers import CONSTANT, conj, zeros
from flambeau.ops.op import Derivative, Operand, overload_names, table
from flambeau.ops.pointwise.dtype_promotion import (
    ALL,
    FLOAT_TO_REAL,
    FLOATING_OR_COMPLEX,
    FLOATS,
    NUMBERS,
    REALS,
    TO_COMPLEX,
    TO_FLOAT,
    WIDE_UNSIGNED,
)
from flambeau.ops.pointwise.erf import erf as erf_of
from flambeau.ops.pointwise.erf import gelu as gelu_of
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.pointwise.pointwise_backward import (
    gelu_backward,
    relu_backward,
    sigmoid_backward,
    silu_backward,
    straight,
    tanh_backward,
)
from flambeau.ops.pointwise.pointwise_body import Into, Lazy
from flambeau.ops.pointwise.pointwise_logic import kept
from flambeau.ops.pointwise.public_forms import BY_HAND, MATH, NO_IN_PLACE, TORCH_IN_PLACE, PublicForms
from flambeau.ops.work import element_work

LN2, LN10 = log_of(2), log_of(10)
Check = Callable[[dtype, Sequence[Operand]], None]


def _refuse_complex(text: str, error: type[Exception] = NotImplementedError) -> Check:
    def check(common: dtype, operands: Sequence[Operand]) -> None:
        if common.is_complex:
            raise error(text)

    return check


# -- roots, exponentials, circular and hyperbolic functions: also of complex numbers --------------------

_function = partial(
    pointwise, arity=1, promotion=TO_FLOAT, dtypes=FLOATING_OR_COMPLEX, flops=10, low=0.1, high=0.9
)


def _define_like_numpy(name: str, compute: Any, summary: str, **fields: Any) -> Pointwise:
    fields = {"cuda": f"{name}_(a)"} | fields
    return _function(name, compute, summary=summary, stub=f"{name}_vml_cpu", **fields)


sqrt = _define_like_numpy(
    "sqrt",
    np.sqrt,
    "Return the square root of each element.",
    derivative=Derivative(lambda grad, out: grad / (2 * conj(out))),
    forms=MATH,
    sparse="values",
)
rsqrt = _define_like_numpy(
    "rsqrt",
    lambda x: 1 / np.sqrt(x),
    "Return one over the square root of each element.",
    cuda="one<T>() / sqrt_(a)",
    derivative=Derivative(lambda grad, out: -0.5 * grad * conj(out) ** 3),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
reciprocal = _define_like_numpy(
    "reciprocal",
    lambda x: 1 / x,
    "Return one over each element.",
    high=3,
    cuda="one<T>() / a",
    derivative=Derivative(lambda grad, out: -grad * conj(out * out)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
exp = _define_like_numpy(
    "exp",
    np.exp,
    "Return e to the power of each element.",
    high=3,
    derivative=Derivative(lambda grad, out: grad * conj(out)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
exp2 = _define_like_numpy(
    "exp2",
    np.exp2,
    "Return 2 to the power of each element.",
    dtypes=FLOATING_OR_COMPLEX,
    high=3,
    derivative=Derivative(lambda grad, out: grad * conj(out) * LN2),
    forms=TORCH_IN_PLACE,
)
expm1 = _define_like_numpy(
    "expm1",
    np.expm1,
    "Return e to the power of each element, less 1; exact near 0.",
    high=3,
    derivative=Derivative(lambda grad, out: grad * (conj(out) + 1)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
    sparse="values",
)
log = _define_like_numpy(
    "log",
    np.log,
    "Return the natural logarithm of each element.",
    high=9,
    derivative=Derivative(lambda grad, a: grad / conj(a)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
log2 = _define_like_numpy(
    "log2",
    np.log2,
    "Return the logarithm to base 2 of each element.",
    high=9,
    derivative=Derivative(lambda grad, a: grad / (conj(a) * LN2)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
log10 = _define_like_numpy(
    "log10",
    np.log10,
    "Return the logarithm to base 10 of each element.",
    high=9,
    derivative=Derivative(lambda grad, a: grad / (conj(a) * LN10)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
log1p = _define_like_numpy(
    "log1p",
    np.log1p,
    "Return the logarithm of 1 plus each element; exact near 0.",
    high=9,
    derivative=Derivative(lambda grad, a: grad / (conj(a) + 1)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
    sparse="values",
)
sin = _define_like_numpy(
    "sin",
    np.sin,
    "Return the sine of each element, in radians.",
    low=-3,
    high=3,
    derivative=Derivative(lambda grad, a: grad * conj(a.cos())),
    forms=MATH,
    sparse="values",
)
cos = _define_like_numpy(
    "cos",
    np.cos,
    "Return the cosine of each element, in radians.",
    low=-3,
    high=3,
    derivative=Derivative(lambda grad, a: -grad * conj(a.sin())),
    forms=MATH,
)
tan = _define_like_numpy(
    "tan",
    np.tan,
    "Return the tangent of each element, in radians.",
    derivative=Derivative(lambda grad, out: grad * conj(1 + out * out)),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
    sparse="values",
)
asin = _define_like_numpy(
    "asin",
    np.arcsin,
    "Return the arcsine of each element, in radians.",
    derivative=Derivative(lambda grad, a: grad * conj((1 - a * a).rsqrt())),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH.with_(aliases=("arcsin",)),
    sparse="values",
)
acos = _define_like_numpy(
    "acos",
    np.arccos,
    "Return the arccosine of each element, in radians.",
    derivative=Derivative(lambda grad, a: -grad * conj((1 - a * a).rsqrt())),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH.with_(aliases=("arccos",)),
)
atan = _define_like_numpy(
    "atan",
    np.arctan,
    "Return the arctangent of each element, in radians.",
    derivative=Derivative(lambda grad, a: grad / conj(a * a + 1)),
    forms=MATH.with_(aliases=("arctan",)),
    sparse="values",
)
sinh = _define_like_numpy(
    "sinh",
    np.sinh,
    "Return the hyperbolic sine of each element.",
    derivative=Derivative(lambda grad, a: grad * conj(a.cosh())),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
    sparse="values",
)
cosh = _define_like_numpy(
    "cosh",
    np.cosh,
    "Return the hyperbolic cosine of each element.",
    derivative=Derivative(lambda grad, a: grad * conj(a.sinh())),
    autocast=FLOAT32_ON_CUDA,
    forms=MATH,
)
tanh = _define_like_numpy(
    "tanh",
    np.tanh,
    "Return the hyperbolic tangent of each element.",
    derivative=Derivative(lambda grad, out, call: call(tanh_backward, (grad, out))),
    forms=MATH,
    sparse="values",
)
asinh = _define_like_numpy(
    "asinh",
    np.arcsinh,
    "Return the inverse hyperbolic sine of each element.",
    derivative=Derivative(lambda grad, a: grad * conj((a * a + 1).rsqrt())),
    forms=TORCH_IN_PLACE.with_(aliases=("arcsinh",)),
    sparse="values",
)


def _acosh_back(grad: Any, a: Any) -> Any:
    """Return the gradient of acosh. As in PyTorch, it is finite below -1, where acosh itself is NaN."""
    if a.dtype.is_complex:
        return grad * conj((a - 1).rsqrt() * (a + 1).rsqrt())
    return grad * (a * a - 1).rsqrt()


acosh = _define_like_numpy(
    "acosh",
    np.arccosh,
    "Return the inverse hyperbolic cosine of each element.",
    low=1.1,
    high=3,
    derivative=Derivative(_acosh_back),
    forms=TORCH_IN_PLACE.with_(aliases=("arccosh",)),
)
atanh = _define_like_numpy(
    "atanh",
    np.arctanh,
    "Return the inverse hyperbolic tangent of each element.",
    derivative=Derivative(lambda grad, a: grad / conj(1 - a * a)),
    forms=TORCH_IN_PLACE.with_(aliases=("arctanh",)),
    sparse="values",
)


def _sinc(x: Any) -> Any:
    y = x * pi
    return np.where(x == 0, np.ones((), y.dtype), np.sin(y) / y)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


sigmoid = _define_like_numpy(
    "sigmoid",
    _sigmoid,
    "Return 1 / (1 + exp(-x)).",
    derivative=Derivative(lambda grad, out, call: call(sigmoid_backward, (grad, out))),
    forms=MATH,
)
sinc = _define_like_numpy(
    "sinc",
    _sinc,
    "Return sin(pi x) / (pi x), 1 at 0.",
    cuda="sinc_(a)",
    derivative=Derivative(
        lambda grad, a: (
            grad * conj(((pi * a).cos() / a - (pi * a).sin() / (pi * a * a)).masked_fill(a == 0, 0))
        )
    ),
    forms=TORCH_IN_PLACE,
)


# -- special functions, of real numbers: SciPy's --------------------------------------------------------


def _special(name: str, ours: str, summary: str, **fields: Any) -> Pointwise:
    def load(launch: Launch) -> Any:
        from scipy import special  # imported here because it is slow to import

        return getattr(special, name)

    fields = {"stub": f"{ours}_vml_cpu", "cuda": f"{ours}_(a)"} | fields
    return pointwise(ours, Lazy(load), 1, summary, promotion=TO_FLOAT, dtypes=FLOATS, flops=20, **fields)


erf = pointwise(
    "erf",
    erf_of,
    1,
    "Return the error function of each element.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    flops=20,
    stub="erf_vml_cpu",
    cuda="erf_(a)",
    derivative=Derivative(lambda grad, a: (-a * a).exp() * (2 / root(pi)) * grad),
    forms=MATH,
    sparse="values",
)
erfc = _special(
    "erfc",
    "erfc",
    "Return 1 minus the error function of each element.",
    derivative=Derivative(lambda grad, a: grad * (-a * a).exp() * (-2 / root(pi))),
    forms=MATH,
)
erfinv = _special(
    "erfinv",
    "erfinv",
    "Return the inverse of the error function.",
    work=element_work.formula(0.0, 0.3, 120.0),
    low=-0.9,
    high=0.9,
    derivative=Derivative(lambda grad, a: grad * a.erfinv().square().exp() * (root(pi) / 2)),
    autocast=FLOAT32_ON_CUDA,
    sparse="values",
)


def _lgamma(launch: Launch) -> Any:
    from scipy.special import gammaln  # imported here because it is slow to import

    return lambda x: np.where(x == -np.inf, -x, gammaln(x))  # SciPy gives -inf there


lgamma = pointwise(
    "lgamma",
    Lazy(_lgamma),
    1,
    "Return the logarithm of the absolute gamma function.",
    work=element_work.formula(30.0, 1.4, 60.0),
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    flops=20,
    low=0.1,
    stub="lgamma_vml_cpu",
    cuda="lgamma_(a)",
    derivative=Derivative(lambda grad, a: grad * a.digamma()),
    forms=PublicForms(foreach=True),
)
digamma = _special(
    "psi",
    "digamma",
    "Return the derivative of the logarithm of the gamma function.",
    work=element_work.formula(60.0, 5.6),
    stub="digamma",
    derivative=Derivative(lambda grad, a, call: grad * call(table["polygamma"], (a,), (1,))),
)


def _logit(x: Any, eps: float | None) -> Any:
    if eps is not None:  # the lower bound is applied first, so that it wins if eps exceeds a half
        low, high = x.dtype.type(eps), x.dtype.type(1) - x.dtype.type(eps)
        x = np.where(x < low, low, np.where(x > high, high, x))
    return np.log(x / (1 - x))


def _xlogy(x: Any, y: Any) -> Any:
    return np.where(np.isnan(y), y, np.where(x == 0, np.zeros((), np.result_type(y)), x * np.log(y)))


def _logit_text(launch: Launch) -> str:
    if launch.params[1] is None:
        return "log_(a / (1 - a))"
    return "log_(held(a, T(k0)) / (1 - held(a, T(k0))))"


def _logit_back(grad: Any, a: Any, params: Any) -> Any:
    (eps,) = params
    slope = grad / ((a + 0.0) * (1 - a))  # treats -0.0 as 0
    if eps is None or eps < 0:
        return slope.masked_fill((a < 0) | (a > 1), math.nan)
    return slope.masked_fill((a < eps) | (a > 1 - eps), 0)


def _over_square(x: Any, a: Any, b: Any) -> Any:
    square = a * a + b * b
    return (x / square).masked_fill(square == 0, 0)


def _xlogy_back(grad: Any, a: Any, b: Any, call: Any) -> Any:
    """Return the derivative with respect to the factor; 0 if it is 0 and b is not positive."""
    return call(xlogy, (grad, b)).masked_fill((a == 0) & (b <= 0), 0)


logit = pointwise(
    "logit",
    _logit,
    1,
    "Return log(x / (1 - x)), with x held to [eps, 1 - eps] where eps is given.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    stub="logit_cpu",
    params=((None,), (1e-6,)),
    constants=lambda static: () if static[0] is None else (float(static[0]),),
    low=0.1,
    high=0.9,
    flops=12,
    cuda=_logit_text,
    derivative=Derivative(_logit_back),
    forms=PublicForms(bound=False, torch_in_place=True),
)
atan2 = pointwise(
    "atan2",
    np.arctan2,
    2,
    "Return the angle of the point (other, input), in radians.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    stub="atan2_cpu",
    flops=10,
    cuda="atan2_(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad * _over_square(b, a, b), lambda grad, a, b: -grad * _over_square(a, a, b)
    ),
    autocast=WIDEST_ON_CUDA,
    forms=PublicForms(aliases=("arctan2",)),
)
hypot = pointwise(
    "hypot",
    np.hypot,
    2,
    "Return the length of the hypotenuse over input and other.",
    dtypes=FLOATS,
    stub="hypot_cpu",
    flops=4,
    cuda="hypot_(a, b)",
    derivative=Derivative(lambda grad, a, out: grad * (a / out), lambda grad, b, out: grad * (b / out)),
)
copysign = pointwise(
    "copysign",
    np.copysign,
    2,
    "Return input's magnitude with other's sign.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    stub="copysign_cpu",
    scalars=(1,),
    cuda="copysign_(a, b)",
    derivative=Derivative(
        lambda grad, a, out: grad * (out / a).masked_fill(a == 0, 0),
        zeros,
        name=overload_names("CopysignBackward0", "CopysignBackward1"),
    ),
)
xlogy: Pointwise = pointwise(
    "xlogy",
    _xlogy,
    2,
    "Return input * log(other); 0 where input is 0.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    stub="xlogy_cpu",
    scalars=(0, 1),
    low=0.1,
    flops=10,
    cuda="is_nan(b) ? b : a == 0 ? T(0) : a * log_(b)",
    derivative=Derivative(
        _xlogy_back, lambda grad, a, b: grad * a / b, name=overload_names("XlogyBackward0", "XlogyBackward2")
    ),
    forms=TORCH_IN_PLACE,
)


def _logaddexp(a: Any, b: Any) -> Any:
    if np.result_type(a).kind != "c":
        return np.logaddexp(a, b)
    # the larger operand is subtracted, so that no exponential overflows
    larger = np.where(np.real(a) >= np.real(b), a, b)
    return larger + np.log(np.exp(a - larger) + np.exp(b - larger))


logaddexp = pointwise(
    "logaddexp",
    _logaddexp,
    2,
    "Return log(exp(input) + exp(other)).",
    dtypes=FLOATING_OR_COMPLEX,
    stub="logaddexp_cpu",
    flops=22,
    cuda="log_add(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad / conj(1 + (b - a).exp()), lambda grad, a, b: grad / conj(1 + (a - b).exp())
    ),
    forms=NO_IN_PLACE,
)
logaddexp2 = pointwise(
    "logaddexp2",
    np.logaddexp2,
    2,
    "Return log2(2 ** input + 2 ** other).",
    dtypes=FLOATS,
    stub="logaddexp2_cpu",
    flops=22,
    cuda="log_add2(a, b)",
    derivative=Derivative(
        lambda grad, a, b: grad / (1 + (b - a).exp2()), lambda grad, a, b: grad / (1 + (a - b).exp2())
    ),
    forms=NO_IN_PLACE,
)


def _degrees_only_real(name: str) -> Check:
    return _refuse_complex(f"{name} is not supported for complex tensors.", RuntimeError)


deg2rad = pointwise(
    "deg2rad",
    lambda x: x * x.dtype.type(pi / 180),
    1,
    "Convert degrees to radians.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    check=_degrees_only_real("deg2rad"),
    cuda="a * T(0.017453292519943295)",
    derivative=Derivative(lambda grad: grad * (pi / 180)),
    forms=TORCH_IN_PLACE,
    sparse="values",
)
rad2deg = pointwise(
    "rad2deg",
    lambda x: x * x.dtype.type(180 / pi),
    1,
    "Convert radians to degrees.",
    promotion=TO_FLOAT,
    dtypes=FLOATS,
    check=_degrees_only_real("rad2deg"),
    cuda="a * T(57.29577951308232)",
    derivative=Derivative(lambda grad: grad * (180 / pi)),
    forms=TORCH_IN_PLACE,
    sparse="values",
)


# -- rounding -------------------------------------------------------------------------------------------


def _keep_integers(rounds: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: x if x.dtype.kind in "iu" else rounds(x)


def _rounding(name: str, compute: Callable[[Any], Any], summary: str, forms: PublicForms) -> Pointwise:
    return pointwise(
        name,
        _keep_integers(compute),
        1,
        summary,
        dtypes=(*NUMBERS, *WIDE_UNSIGNED),
        stub=f"{name}_vml_cpu",
        cuda=f"{name}_(a)",
        check=_refuse_complex(f"{name} is not supported for complex inputs"),
        derivative=CONSTANT,
        forms=forms,
        sparse="values",
    )


def _power_of_ten(decimals: int) -> float:
    # for larger numbers Python's power raises
    return 10.0 ** abs(decimals) if abs(decimals) <= 308 else math.inf


def _round_decimals(x: Any, decimals: int) -> Any:
    scale = x.dtype.type(_power_of_ten(decimals))
    return np.rint(x * scale) / scale if decimals > 0 else np.rint(x / scale) * scale


floor = _rounding("floor", np.floor, "Return each element rounded down.", forms=MATH)
ceil = _rounding("ceil", np.ceil, "Return each element rounded up.", forms=MATH)
trunc = _rounding(
    "trunc", np.trunc, "Return each element rounded towards zero.", forms=MATH.with_(aliases=("fix",))
)
round_ = _rounding(
    "round",
    np.rint,
    "Return each element rounded to the nearest, halves to the even neighbour.",
    forms=PublicForms(bound=False, torch_in_place=True, foreach=True),
)
round_decimals = pointwise(
    "round.decimals",
    _round_decimals,
    1,
    "Return each element rounded to a number of decimals.",
    dtypes=FLOATS,
    stub="round_cpu",
    params=((2,), (-1,)),
    cuda="k1 ? rint(a * T(k0)) / T(k0) : rint(a / T(k0)) * T(k0)",
    constants=lambda static: (_power_of_ten(static[0]), int(static[0] > 0)),
    derivative=CONSTANT,
    sparse="values",
)
frac = pointwise(
    "frac",
    lambda x: x - np.trunc(x),
    1,
    "Return the fractional part, with the sign of the element.",
    dtypes=FLOATS,
    cuda="a - trunc(a)",
    derivative=Derivative(lambda grad: grad),
    forms=MATH,
    sparse="values",
)


# -- signs and parts ------------------------------------------------------------------------------------


def _sign(x: Any) -> Any:
    return x if x.dtype == bool else (x > 0).astype(x.dtype) - (x < 0)


def _sgn(x: Any) -> Any:
    if x.dtype.kind != "c":
        return _sign(x)
    size = np.abs(x)
    return np.where(size == 0, np.zeros((), x.dtype), x / size)


def _angle(x: Any) -> Any:
    if x.dtype.kind == "c":
        return np.angle(x)
    return np.where(np.isnan(x), x, np.where(x < 0, x.dtype.type(pi), x.dtype.type(0)))


def _nan_to_num(x: Any, nan: float | None, posinf: float | None, neginf: float | None) -> Any:
    if x.dtype.kind not in "fc":
        return x
    if x.dtype.kind == "c":
        return _complex(*(_nan_to_num(part, nan, posinf, neginf) for part in (np.real(x), np.imag(x))))
    x = np.where(np.isnan(x), x.dtype.type(nan or 0), x)
    x = np.where(x == np.inf, x.dtype.type(posinf), x)
    return np.where(x == -np.inf, x.dtype.type(neginf), x)


def _sgn_back(grad: Any, a: Any, out: Any) -> Any:
    if not a.dtype.is_complex:
        return zeros(grad)
    size = a.abs()
    turned = grad / size - (conj(grad) * out).real * out / size
    return turned.masked_fill(size == 0, 0)


def _angle_back(grad: Any, a: Any) -> Any:
    if not a.dtype.is_complex:
        return zeros(grad)
    square = (a * conj(a)).real
    slope = grad / square
    return (a * 1j * slope).masked_fill(square == 0, 0)


sign = pointwise(
    "sign",
    _sign,
    1,
    "Return -1, 0 or 1 by the sign of each element.",
    dtypes=REALS,
    check=_refuse_complex(
        "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use torch.sgn instead."
    ),
    cuda="sign(a)",
    derivative=CONSTANT,
    forms=PublicForms(foreach=True),
    sparse="values",
)
sgn = pointwise(
    "sgn",
    _sgn,
    1,
    "Return each element over its absolute value; 0 for 0.",
    dtypes=ALL,
    cuda="sign(a)",
    derivative=Derivative(_sgn_back),
    sparse="values",
)
angle = pointwise(
    "angle",
    _angle,
    1,
    "Return the angle of each element in the complex plane.",
    promotion=FLOAT_TO_REAL,
    cuda="angle_(a)",
    derivative=Derivative(_angle_back),
    forms=NO_IN_PLACE,
)
conj_physical = pointwise(
    "conj_physical",
    lambda x: np.conjugate(x) if x.dtype.kind == "c" else x,
    1,
    "Return the complex conjugate of each element.",
    dtypes=DTYPES,
    cuda="conjugate(a)",
    derivative=Derivative(lambda grad: conj(grad)),
    forms=PublicForms(bound=False, torch_in_place=True),
    sparse="linear",
)


def _parts_agree(name: str) -> Check:
    def check(common: dtype, operands: Sequence[Operand]) -> None:
        kinds = [x.dtype for x in operands if isinstance(x, Meta)]
        for kind in kinds:
            if kind not in FLOATS or kind.name == "bfloat16":
                raise RuntimeError(
                    f"Expected both inputs to be Half, Float or Double tensors but got {kinds[0].torch_name} and "
                    f"{kinds[1].torch_name}"
                )
        if kinds[0] is not kinds[1]:
            raise RuntimeError(
                f"Expected object of scalar type {kinds[0].torch_name} but got scalar type {kinds[1].torch_name} "
                "for second argument"
            )

    return check


def _complex(real: Any, imag: Any) -> Any:
    out = np.empty(broadcast_shapes((real.shape, imag.shape)), np.result_type(real, np.complex64))
    out.real, out.imag = real, imag
    return out


complex_ = pointwise(
    "complex",
    _complex,
    2,
    "Return a complex tensor of its real and imaginary parts.",
    promotion=TO_COMPLEX,
    dtypes=FLOATS,
    check=_parts_agree("complex"),
    cuda="cx<T>{a, b}",
    derivative=Derivative(lambda grad: grad.real, lambda grad: grad.imag),
    forms=BY_HAND,
)
polar = pointwise(
    "polar",
    lambda size, angle: _complex(size * np.cos(angle), size * np.sin(angle)),
    2,
    "Return a complex tensor of its absolute values and angles.",
    promotion=TO_COMPLEX,
    dtypes=(float32, float64),
    check=_parts_agree("polar"),
    flops=20,
    cuda="cx<T>{a * cos_(b), a * sin_(b)}",
    derivative=Derivative(
        lambda grad, b: grad.real * b.cos() + grad.imag * b.sin(),
        lambda grad, a, b: (grad.imag * b.cos() - grad.real * b.sin()) * a,
    ),
    autocast=FLOAT32_ON_CPU,
    forms=BY_HAND,
)
nan_to_num = pointwise(
    "nan_to_num",
    _nan_to_num,
    1,
    "Return NaN and the infinities replaced by numbers.",
    dtypes=(*ALL, *WIDE_UNSIGNED),
    params=((0.0, 1e4, -1e4),),
    cuda="numbered(a, k0, k1, k2)",
    constants=lambda static: [float(x or 0) for x in static],
    derivative=Derivative(lambda grad, a, call: call(kept, (a.isfinite(), grad, 0))),
    forms=PublicForms(bound=False, torch_in_place=True),
    sparse="values",
)


# -- activations: torch.nn.functional's -----------------------------------------------------------------


def _relu_refuses_bool(common: dtype, operands: Sequence[Operand]) -> None:
    if common is bool_:
        raise RuntimeError("Boolean inputs not supported for relu")


def _gelu_by_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(root(2 / pi) * (x + 0.044715 * x * x * x)))


def _gelu(x: Any, approximate: str, out: Any = None) -> Any:
    return in_blocks(_gelu_by_tanh if approximate == "tanh" else _exact_gelu, x, out)


def _exact_gelu(x: Any) -> Any:
    if x.dtype == np.float32:
        return gelu_of(x)
    return x * 0.5 * (1 + erf_of(x * root(0.5)))


def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    scaled = x * beta
    return np.where(scaled > threshold, x, np.log1p(np.exp(scaled)) / beta)


def _leaky(x: Any, slope: Any, out: Any = None) -> Any:
    scaled = x * slope
    # the maximum of two functions avoids a choice for each element
    if not np.ndim(slope) and 0 < slope <= 1:
        return np.maximum(x, scaled, out=out)
    return choose(x > 0, x, scaled, out)


def _elu(x: Any, alpha: Any, scale: Any, input_scale: Any, out: Any = None) -> Any:
    below = scale * alpha * np.expm1(np.minimum(x, 0) * input_scale)  # expm1(0) is cheap
    return choose(x < 0, below, scale * x, out)


relu = pointwise(
    "relu",
    Into(lambda x, out=None: np.maximum(x, 0, out=out)),
    1,
    "Return each element, or 0 where it is negative.",
    dtypes=NUMBERS,
    stub="clamp_min_scalar_cpu",
    check=_relu_refuses_bool,
    cuda="greater(a, T(0))",
    derivative=Derivative(lambda grad, out, call: call(relu_backward, (grad, out))),
    forms=TORCH_IN_PLACE,
    sparse="values",
)


def _gelu_text(launch: Launch) -> str:
    if launch.params[1] == "tanh":
        return "T(0.5) * a * (1 + tanh_(T(0.7978845608028654) * (a + T(0.044715) * a * a * a)))"
    return "a * T(0.5) * (1 + erf_(a * T(0.7071067811865476)))"


gelu = pointwise(
    "gelu",
    Into(_gelu),
    1,
    "Return x times the normal distribution's cumulative probability of x.",
    dtypes=FLOATS,
    stub="GeluKernelImpl",
    params=(("none",), ("tanh",)),
    flops=20,
    cuda=_gelu_text,
    derivative=Derivative(lambda grad, a, params, call: call(gelu_backward, (grad, a), params)),
    forms=BY_HAND,
)
silu = pointwise(
    "silu",
    lambda x: x * _sigmoid(x),
    1,
    "Return x * sigmoid(x).",
    dtypes=FLOATING_OR_COMPLEX,
    flops=12,
    cuda="a * sigmoid_(a)",
    derivative=Derivative(lambda grad, a, call: call(silu_backward, (grad, a))),
    forms=BY_HAND,
)
softplus = pointwise(
    "softplus",
    _softplus,
    3,
    "Return log(1 + exp(beta x)) / beta, or x itself past the threshold.",
    dtypes=FLOATS,
    promoting=slice(1),
    wide_scalars=True,
    flops=22,
    examples=((1, 20), (2.0, 1.0)),
    cuda="a * b > c ? a : log1p_(exp_(a * b)) / b",
    derivative=Derivative(
        lambda grad, a, b, c, call: call(kept, (a * b > c, grad, grad * (a * b).sigmoid()))
    ),
    autocast=FLOAT32_ON_CUDA,
    forms=BY_HAND,
)
leaky_relu = pointwise(
    "leaky_relu",
    Into(_leaky),
    2,
    "Return x, or negative_slope * x below 0.",
    dtypes=FLOATS,
    promoting=slice(1),
    wide_scalars=True,
    examples=((0.01,),),
    stub="leaky_relu_cpu",
    cuda="a > 0 ? a : a * b",
    derivative=Derivative(lambda grad, a, b, call: straight(grad.where(a > 0, grad * b), a, call)),
    forms=BY_HAND,
)
elu = pointwise(
    "elu",
    Into(_elu),
    4,
    "Return scale * x, or scale * alpha * (exp(input_scale * x) - 1) below 0.",
    dtypes=FLOATS,
    promoting=slice(1),
    wide_scalars=True,
    flops=12,
    examples=((1.0, 1, 1),),
    stub="elu_cpu",
    cuda="a <= 0 ? c * b * expm1_(a * d) : c * a",
    derivative=Derivative(
        lambda grad, a, b, c, d, call: call(kept, (~(a <= 0), grad * c, grad * (b * c * d) * (a * d).exp()))
    ),
    forms=BY_HAND,
)
