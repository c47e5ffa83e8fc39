"""Special functions: the gamma family, Bessel functions, orthogonal polynomials, functions of the normal distribution.

Host bodies are SciPy's where it has them; CUDA's expressions call driver/cuda/include/special.cuh. PyTorch has few of
them for half and bfloat16, and none for complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import factorial, pi
from math import sqrt as root
from typing import Any

import numpy as np

from flambeau.core.dtype import bfloat16 as bf16
from flambeau.core.dtype import dtype, float16, float32, float64, int32
from flambeau.core.layout import broadcast_shapes
from flambeau.core.typeinfo import finfo
from flambeau.driver.protocol import Launch
from flambeau.ops.op import NOT_DIFFERENTIABLE, Derivative
from flambeau.ops.pointwise.dtype_promotion import FLOATS, TO_FLOAT, Promotion
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.pointwise.pointwise_body import Lazy

WIDE_FLOATS = (float32, float64)
_special = partial(
    pointwise, header="special", flops=40, derivative=NOT_DIFFERENTIABLE
)  # as for most functions in PyTorch


def scipys(name: str, change: Callable[..., Any] | None = None) -> Lazy:
    """Return a reference implementation that calls a function of scipy.special, imported on first use.

    Args:
        change: Called as `change(function, *x)` instead of `function(*x)`.
    """

    def load(launch: Launch) -> Any:
        from scipy import special

        found = getattr(special, name)
        return found if change is None else partial(change, found)

    return Lazy(load)


# -- of one number --------------------------------------------------------------------------------------------


def _unary(
    name: str, compute: Any, summary: str, cuda: str, dtypes: tuple[dtype, ...] = WIDE_FLOATS, **given: Any
) -> Pointwise:
    """Return the definition of a special function of one operand, named as PyTorch's kernels in errors
    ("airy_ai_cpu").
    """
    fields: dict[str, Any] = {"stub": f"{name.removeprefix('special_')}_cpu", "promotion": TO_FLOAT} | given
    return _special(name, compute, 1, summary, cuda=cuda, dtypes=dtypes, **fields)


def _spherical(x: Any) -> Any:
    return np.where(np.isinf(x), 0, np.where(x == 0, 1, np.sin(x) / x)).astype(x.dtype)


def _entr(x: Any) -> Any:
    value = np.where(x > 0, -x * np.log(x), np.where(x == 0, x.dtype.type(0), x.dtype.type(-np.inf)))
    return np.where(np.isnan(x), x, value)


def _airy(function: Any, x: Any) -> Any:
    """Return Ai(x), also for large numbers, for which SciPy's function gives NaN instead of 0."""
    return np.where((x > 104) & np.isfinite(x), x.dtype.type(0), function(x)[0])


def _i1_slope(a: Any, out: Any, zeroth: Any, more: Any = 0) -> Any:
    """Return the derivative of i1 or i1e, computed from the function of order 0; 1/2 near 0."""
    least = finfo(a.dtype).eps
    near = a.abs() <= least
    return (zeroth - out * (1 / a.masked_fill(near, least) + more)).masked_fill(near, 0.5)


i0: Pointwise = _unary(
    "i0",
    scipys("i0"),
    "Return Bessel's modified function of the first kind, order 0.",
    "bessel_i0(a)",
    FLOATS,
    stub="i0_vml_cpu",
    derivative=Derivative(lambda grad, a, call: grad * call(i1, (a,))),
)
i0e: Pointwise = _unary(
    "special_i0e",
    scipys("i0e"),
    "Return exp(-|x|) i0(x).",
    "bessel_i0e(a)",
    FLOATS,
    derivative=Derivative(
        lambda grad, a, out, call: grad * (call(i1e, (a,)) - a.sgn() * out), name="SpecialI0E"
    ),
)
i1: Pointwise = _unary(
    "special_i1",
    scipys("i1"),
    "Return Bessel's modified function of the first kind, order 1.",
    "bessel_i1(a)",
    FLOATS,
    derivative=Derivative(lambda grad, a, out, call: grad * _i1_slope(a, out, call(i0, (a,)))),
)
i1e: Pointwise = _unary(
    "special_i1e",
    scipys("i1e"),
    "Return exp(-|x|) i1(x).",
    "bessel_i1e(a)",
    FLOATS,
    derivative=Derivative(
        lambda grad, a, out, call: grad * _i1_slope(a, out, call(i0e, (a,)), a.sgn()), name="SpecialI1E"
    ),
)
modified_i0 = _unary(
    "special_modified_bessel_i0",
    scipys("i0"),
    "Return Bessel's modified function of the first kind, order 0.",
    "bessel_i0(a)",
)
modified_i1 = _unary(
    "special_modified_bessel_i1",
    scipys("i1"),
    "Return Bessel's modified function of the first kind, order 1.",
    "bessel_i1(a)",
)
k0 = _unary(
    "special_modified_bessel_k0",
    scipys("k0"),
    "Return Bessel's modified function of the second kind, order 0.",
    "bessel_k0(a, false)",
    low=0.1,
)
k1 = _unary(
    "special_modified_bessel_k1",
    scipys("k1"),
    "Return Bessel's modified function of the second kind, order 1.",
    "bessel_k1(a, false)",
    low=0.1,
)
k0e = _unary(
    "special_scaled_modified_bessel_k0",
    scipys("k0e"),
    "Return exp(x) modified_bessel_k0(x).",
    "bessel_k0(a, true)",
    low=0.1,
)
k1e = _unary(
    "special_scaled_modified_bessel_k1",
    scipys("k1e"),
    "Return exp(x) modified_bessel_k1(x).",
    "bessel_k1(a, true)",
    low=0.1,
)
j0 = _unary(
    "special_bessel_j0",
    scipys("j0"),
    "Return Bessel's function of the first kind, order 0.",
    "T(j0((double)a))",
)
j1 = _unary(
    "special_bessel_j1",
    scipys("j1"),
    "Return Bessel's function of the first kind, order 1.",
    "T(j1((double)a))",
)
y0 = _unary(
    "special_bessel_y0",
    scipys("y0"),
    "Return Bessel's function of the second kind, order 0.",
    "T(y0((double)a))",
    low=0.1,
)
y1 = _unary(
    "special_bessel_y1",
    scipys("y1"),
    "Return Bessel's function of the second kind, order 1.",
    "T(y1((double)a))",
    low=0.1,
)
spherical_j0 = _unary(
    "special_spherical_bessel_j0", _spherical, "Return sin(x) / x, 1 at 0.", "bessel_spherical(a)"
)
airy_ai = _unary("special_airy_ai", scipys("airy", _airy), "Return Airy's function Ai.", "airy(a)")
entr = _unary(
    "special_entr",
    _entr,
    "Return -x log(x); 0 at 0, -inf below.",
    "entr_(a)",
    FLOATS,
    low=0.1,
    derivative=Derivative(lambda grad, a: grad * (-1 - a.log())),
)
erfcx: Pointwise = _unary(
    "special_erfcx",
    scipys("erfcx"),
    "Return exp(x^2) erfc(x).",
    "erfcx_(a)",
    derivative=Derivative(lambda grad, a, out: grad * (2 * a * out - 2 / root(pi))),
)
ndtri = _unary(
    "special_ndtri",
    scipys("ndtri"),
    "Return the inverse of the normal distribution's cumulative probability.",
    "ndtri_(a)",
    low=0.05,
    high=0.95,
    derivative=Derivative(lambda grad, out: grad * root(2 * pi) * (out.square() / 2).exp()),
)
log_ndtr = _unary(
    "special_log_ndtr",
    scipys("log_ndtr"),
    "Return the logarithm of the normal distribution's cumulative probability.",
    "log_ndtr_(a)",
    derivative=Derivative(lambda grad, a, call: grad / call(erfcx, (a * -root(0.5),)) * root(2 / pi)),
)


def _polygamma(zeta: Any, x: Any, n: int) -> Any:
    """Return polygamma as PyTorch computes it, by `_zeta`; n = 1 differs: 0 at infinity and NaN at -infinity."""
    if n == 1:
        return np.where(np.isneginf(x), np.nan, zeta(2.0, x.astype(np.float64))).astype(x.dtype)
    sign = 1.0 if n % 2 else -1.0
    scale = sign * factorial(n) if n <= 170 else sign * np.inf
    return (scale * _zeta(zeta, n + 1.0, x.astype(np.float64))).astype(x.dtype)


def _zeta(zeta: Any, s: Any, q: Any) -> Any:
    """Return Hurwitz's zeta function; NaN for infinite q, as in PyTorch's sum."""
    return np.where(np.isposinf(q) & (s > 1), np.nan, zeta(s, q)).astype(q.dtype)


polygamma: Pointwise = _unary(
    "polygamma",
    scipys("zeta", _polygamma),
    "Return the n-th derivative of digamma.",
    "polygamma_(a, k0)",
    FLOATS,
    stub="polygamma",
    low=0.5,
    params=((1,), (3,)),
    constants=lambda static: (static[0],),
    derivative=Derivative(lambda grad, a, params, call: grad * call(polygamma, (a,), (params[0] + 1,))),
)


# -- of two numbers ---------------------------------------------------------------------------------------------


def _binary(name: str, compute: Any, summary: str, cuda: str, **given: Any) -> Pointwise:
    fields: dict[str, Any] = {"dtypes": WIDE_FLOATS, "promotion": TO_FLOAT, "scalars": (0, 1)} | given
    fields.setdefault("stub", f"{name.removeprefix('special_')}_cpu")  # fmt: skip
    return _special(name, compute, 2, summary, cuda=cuda, **fields)


def _xlog1py(x: Any, y: Any) -> Any:
    return np.where(np.isnan(y), y, np.where(x == 0, np.zeros((), np.result_type(y)), x * np.log1p(y)))


def _no_order(grad: Any) -> Any:
    raise NotImplementedError("the derivative for this input is not implemented.")


def _gamma_density(a: Any, b: Any) -> Any:
    """Return the derivative of igamma with respect to its upper limit."""
    return ((a - 1) * b.log() - b - a.lgamma()).exp()


def _xlog1py_back(grad: Any, a: Any, b: Any, call: Any) -> Any:
    """Return the gradient with respect to a; 0 where a is 0 and the logarithm is infinite."""
    return call(xlog1py, (grad, b)).masked_fill((a == 0) & (b <= -1), 0)


igamma = _binary(
    "igamma",
    scipys("gammainc", lambda f, a, x: f(a, x)),
    "Return the regularized lower incomplete gamma function.",
    "incomplete_gamma(a, b, false)",
    dtypes=FLOATS,
    promotion=Promotion(),
    scalars=(),
    low=0.1,
    derivative=Derivative(_no_order, lambda grad, a, b: grad * _gamma_density(a, b)),
)
igammac = _binary(
    "igammac",
    scipys("gammaincc", lambda f, a, x: f(a, x)),
    "Return the regularized upper incomplete gamma function.",
    "incomplete_gamma(a, b, true)",
    dtypes=FLOATS,
    promotion=Promotion(),
    scalars=(),
    low=0.1,
    derivative=Derivative(_no_order, lambda grad, a, b: -grad * _gamma_density(a, b)),
)
zeta: Pointwise = _binary(
    "special_zeta",
    scipys("zeta", _zeta),
    "Return Hurwitz's zeta function.",
    "zeta_(a, b)",
    low=1.5,
    high=4,
    derivative=Derivative(_no_order, lambda grad, a, b, call: grad * -a * call(zeta, (a + 1, b))),
)
xlog1py: Pointwise = _binary(
    "special_xlog1py",
    _xlog1py,
    "Return input * log1p(other); 0 where input is 0.",
    "is_nan(b) ? b : a == 0 ? T(0) : a * log1p_(b)",
    dtypes=FLOATS,
    low=0.1,
    derivative=Derivative(
        _xlog1py_back,
        lambda grad, a, b: grad * a / (b + 1),
    ),
)


# -- orthogonal polynomials of degree n ---------------------------------------------------------------------------

Step = Callable[[int, Any, Any, Any], Any]
MOST_STEPS = 300_000  # some five seconds


def _degree(n: Any) -> Any:
    """Return degrees as integers. NaN, infinity and values beyond 64 bits become negative, as in C++ on x86."""
    n = n.astype(np.float64)
    return np.where(np.abs(n) < 2.0**63, np.trunc(n), -1.0)


def _climb(x: Any, n: Any, first: Any, step: Step) -> Any:
    """Return the polynomial of degree n by the recurrence p(k + 1) = `step(k, x, p(k - 1), p(k))`.

    p(0) = 1 and p(1) = `first`; a negative degree gives 0.
    """
    # broadcast_shapes of this package: NumPy's supports at most 32 dimensions
    shape = broadcast_shapes((x.shape, n.shape, first.shape))
    x, n, first = (np.broadcast_to(each, shape) for each in (x.astype(np.float64), n, first))
    out = np.where(n < 0, 0.0, np.where(n == 0, 1.0, first))
    p, q = np.ones(x.shape), first.astype(np.float64)
    for k in range(1, int(n.max(initial=0))):
        p, q = q, step(k, x, p, q)
        out = np.where(n == k + 1, q, out)
        if np.isnan(q[n > k]).all():  # infinity minus infinity: NaN for every higher degree
            return np.where(n > k, q, out)
        if k == MOST_STEPS:
            raise RuntimeError(
                f"a polynomial of degree {int(n.max())} takes too long: its recurrence has more than {MOST_STEPS} "
                "steps without an overflow. Use a smaller degree"
            )
    return out


def _polynomial(first: Callable[[Any], Any], step: Step) -> Callable[[Any, Any], Any]:
    def compute(x: Any, n: Any) -> Any:
        wide = x.astype(np.float64)
        return _climb(wide, _degree(n), first(wide), step).astype(x.dtype)

    return compute


_ANGLES: dict[str, Callable[[Any, Any], Any]] = {
    "t": lambda n, t: np.cos(n * t),
    "u": lambda n, t: np.sin((n + 1) * t) / np.sin(t),
    "v": lambda n, t: np.cos((n + 0.5) * t) / np.cos(t / 2),
    "w": lambda n, t: np.sin((n + 0.5) * t) / np.sin(t / 2),
}
_FIRST: dict[str, Callable[[Any], Any]] = {
    "t": lambda x: x, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1,
}  # fmt: skip


_ENDS: dict[str, Callable[[Any, Any], Any]] = {  # values at 1, or with `right` False at -1 up to the sign
    "t": lambda n, right: 1.0,
    "u": lambda n, right: n + 1,
    "v": lambda n, right: np.where(right, 1.0, 2 * n + 1),
    "w": lambda n, right: np.where(right, 2 * n + 1, 1.0),
}


def _chebyshev(kind: str, shifted: bool, x: Any, n: Any) -> Any:
    """Return a Chebyshev polynomial: by angles inside (-1, 1), by a closed form at the ends."""
    wide = 2 * x.astype(np.float64) - 1 if shifted else x.astype(np.float64)
    n = _degree(n)
    by_angle, at_end = (n > (6 if kind == "t" else 8)) & (np.abs(wide) < 1), (n >= 0) & (np.abs(wide) == 1)
    climbed = _climb(
        wide, np.where(by_angle | at_end, 0, n), _FIRST[kind](wide), lambda k, x, p, q: 2 * x * q - p
    )
    ends = _ENDS[kind](n, wide > 0) * np.where((wide < 0) & (n % 2 == 1), -1.0, 1.0)
    return np.where(by_angle, _ANGLES[kind](n, np.arccos(wide)), np.where(at_end, ends, climbed)).astype(
        x.dtype
    )


def _chebyshevs(shifted: bool) -> list[Pointwise]:
    prefix, words = ("special_shifted_", "shifted ") if shifted else ("special_", "")
    return [
        _binary(
            f"{prefix}chebyshev_polynomial_{kind}",
            partial(_chebyshev, kind, shifted),
            f"Chebyshev's {words}polynomial of the {ordinal} kind, of degree n.",
            f"chebyshev(a, b, {at}, {str(shifted).lower()})",
            low=0,
        )
        for at, (kind, ordinal) in enumerate(zip("tuvw", ("first", "second", "third", "fourth"), strict=True))
    ]


chebyshev_t, chebyshev_u, chebyshev_v, chebyshev_w = _chebyshevs(shifted=False)
shifted_t, shifted_u, shifted_v, shifted_w = _chebyshevs(shifted=True)
hermite_h = _binary(
    "special_hermite_polynomial_h",
    _polynomial(lambda x: 2 * x, lambda k, x, p, q: 2 * (x * q - k * p)),
    "Return the physicists' polynomial of Hermite, of degree n.",
    "hermite(a, b, 2)",
    low=0,
)
hermite_he = _binary(
    "special_hermite_polynomial_he",
    _polynomial(lambda x: x, lambda k, x, p, q: x * q - k * p),
    "Return the probabilists' polynomial of Hermite, of degree n.",
    "hermite(a, b, 1)",
    low=0,
)
laguerre = _binary(
    "special_laguerre_polynomial_l",
    _polynomial(lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * q - k * p) / (k + 1)),
    "Return Laguerre's polynomial of degree n.",
    "laguerre(a, b)",
    low=0,
)
legendre = _binary(
    "special_legendre_polynomial_p",
    _polynomial(lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * q - k * p) / (k + 1)),
    "Return Legendre's polynomial of degree n.",
    "legendre(a, b)",
    low=0,
)


# -- the parts of a floating-point number ---------------------------------------------------------------------------


def _next_of(launch: Launch) -> Callable[[Any, Any], Any]:
    """Return nextafter in the tensors' own dtype, although operands are converted to a wider one."""
    kind = launch.params[0]
    if kind in WIDE_FLOATS:
        return np.nextafter
    narrow = kind.numpy
    return lambda a, b: np.nextafter(np.asarray(a).astype(narrow), np.asarray(b).astype(narrow)).astype(
        np.float32
    )


def _next_text(launch: Launch) -> str:
    narrow = {float16: "half", bf16: "bf16"}.get(launch.params[0])
    return f"next_narrow<{narrow}>(a, b)" if narrow else "next_after(a, b)"


nextafter = _special(
    "nextafter",
    Lazy(_next_of),
    2,
    "Return the next number after input towards other.",
    dtypes=FLOATS,
    cuda=_next_text,
    flops=1,
    derivative=Derivative(
        lambda grad, a, b: grad.masked_fill(a == b, 0), lambda grad: grad.new_zeros(grad.shape)
    ),
)
frexp_mantissa = _special(
    "frexp.mantissa",
    lambda x: np.frexp(x)[0],
    1,
    "Return f of x = f * 2 ** e.",
    dtypes=FLOATS,
    stub="frexp_cpu",
    cuda="fraction(a)",
    flops=1,
    derivative=Derivative(
        lambda grad, a, call: grad / call(frexp_exponent, (a,)).to(grad.dtype).exp2(), name="Frexp"
    ),
)
frexp_exponent: Pointwise = _special(
    "frexp.exponent",
    lambda x: np.frexp(x)[1],
    1,
    "Return e of x = f * 2 ** e.",
    dtypes=FLOATS,
    stub="frexp_cpu",
    promotion=Promotion(result=lambda kind: int32),
    cuda="exponent(a)",
    flops=1,
)


def _ldexp(x: Any, n: Any) -> Any:
    return np.ldexp(x, np.clip(n, -10000, 10000).astype(np.int32))


ldexp: Pointwise = _special(
    "ldexp",
    _ldexp,
    2,
    "Return input * 2 ** other, of whole exponents, rounded once.",
    dtypes=WIDE_FLOATS,
    promoting=slice(1),
    stub="ldexp_cpu_exp",
    flops=1,
    cuda="T(ldexp(a, (int)(b < -10000 ? T(-10000) : b > 10000 ? T(10000) : b)))",
    derivative=Derivative(lambda grad, b, call: call(ldexp, (grad, b)), None),
)
