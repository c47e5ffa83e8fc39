"""Special functions: those in `torch`, and the additional ones of `torch.special`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flambeau.core.dtype import FLOATING, INTEGRAL, bool_
from flambeau.core.flags import flags
from flambeau.ops.pointwise import pointwise_functions
from flambeau.ops.pointwise import pointwise_special as ops
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tensor.arguments import return_types
from flambeau.tensor.arguments.arg_aliases import accepting
from flambeau.tensor.arguments.integers import as_int
from flambeau.tensor.arguments.public import alias, both, function, functions, method
from flambeau.tensor.functions.arithmetic import (
    bind_binary,
    bind_unary,
    into,
    operand,
    publish,
    run,
    tensor_operand,
)
from flambeau.tensor.functions.creation import arange
from flambeau.tensor.out_argument import deliver
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

bind_unary(ops.i0)
bind_binary(ops.igamma)
bind_binary(ops.igammac)
bind_binary(ops.nextafter)
alias("i0_", Tensor.__dict__["i0_"], as_method=False)


# -- of the gamma family ----------------------------------------------------------------------------------


def _order(n: int) -> int:
    n = as_int(n)
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return n


@function
def polygamma(n: int, input: Tensor, *, out: Any = None) -> Any:
    """Return the n-th derivative of digamma, n >= 0."""
    n = _order(n)
    input = tensor_operand(input, "polygamma", "input", 2)
    return functions["digamma"](input, out=out) if n == 0 else run(ops.polygamma, (input,), out, (n,))


@signatures("Tensor.polygamma(n: int)")
def _polygamma(self: Tensor, n: int) -> Any:
    return polygamma(n, self)


@signatures("Tensor.polygamma_(n: int)")
def _polygamma_(self: Tensor, n: int) -> Any:
    n = _order(n)
    return into(ops.polygamma, (self,), (n,)) if n else into(pointwise_functions.digamma, (self,))


publish(_polygamma, "polygamma", polygamma.__doc__ or "", method)
publish(_polygamma_, "polygamma_", "`polygamma` in place.", method)


@function
def mvlgamma(input: Tensor, p: int, *, out: Any = None) -> Any:
    """Return the logarithm of the multivariate gamma function of dimension p >= 1."""
    return deliver(_mvlgamma(tensor_operand(input, "mvlgamma", "input", 1), p), out)


def _mvlgamma(x: Tensor, p: int) -> Any:
    if x.dtype is bool_:
        raise RuntimeError("The input tensor may not be a boolean tensor.")
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    kind = flags.default_dtype if x.dtype.category <= INTEGRAL else x.dtype
    halves = arange(0.5 - p / 2, 0.5, 0.5, dtype=kind, device=x.device) + x.unsqueeze(-1)
    return halves.lgamma().sum(-1) + p * (p - 1) * (math.log(math.pi) / 4)


def _mvlgamma_method(self: Tensor, p: int) -> Any:
    return _mvlgamma(self, p)


def _mvlgamma_(self: Tensor, p: int) -> Any:
    return self.copy_(checked_cast(_mvlgamma(self, p), self))


def checked_cast(result: Tensor, target: Tensor) -> Tensor:
    """Return a result in the dtype of an in-place target. Raises RuntimeError if floats would be stored in integers."""
    if result.dtype.category > target.dtype.category:
        raise RuntimeError(
            f"result type {result.dtype.torch_name} can't be cast to the desired output type {target.dtype.torch_name}"
        )
    return result


publish(_mvlgamma_method, "mvlgamma", mvlgamma.__doc__ or "", method)
publish(_mvlgamma_, "mvlgamma_", "`mvlgamma` in place.", method)


# -- the parts of a floating-point number -------------------------------------------------------------------


@both
def frexp(input: Tensor, *, out: Any = None) -> Any:
    """Return (mantissa, exponent) of x = mantissa * 2 ** exponent, 0.5 <= |mantissa| < 1; the exponent is int32."""
    input = tensor_operand(input, "frexp", "input", 1)
    if input.dtype.category != FLOATING:
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    mantissa, exponent = (None, None) if out is None else out
    parts = run(ops.frexp_mantissa, (input,), mantissa), run(ops.frexp_exponent, (input,), exponent)
    return return_types.frexp.of(parts, out)


@function
def ldexp(input: Tensor, other: Tensor, *, out: Any = None) -> Any:
    """Return input * 2 ** other."""
    x, exponent = tensor_operand(input, "ldexp", "input", 1), tensor_operand(other, "ldexp", "other", 2)
    if _scales_by_power(x, exponent):
        return functions["mul"](x, functions["pow"](2.0, exponent), out=out)
    if exponent.dtype is bool_:
        raise NotImplementedError("\"ldexp_cpu_exp\" not implemented for 'Bool'")
    if x.dtype.itemsize < 4:
        return deliver(ldexp(x.float(), exponent).to(x.dtype), out)
    return run(ops.ldexp, (x, exponent), out)


def _scales_by_power(x: Tensor, exponent: Tensor) -> bool:
    """Return True if 2 ** exponent is computed as a separate number, which may overflow although the product does
    not.
    """
    return x.dtype.category != FLOATING or exponent.dtype.category > INTEGRAL


def _ldexp(self: Tensor, other: Tensor) -> Any:
    return ldexp(self, other)


def _ldexp_(self: Any, other: Tensor) -> Any:
    x, exponent = tensor_operand(self, "ldexp_", "input", 1), tensor_operand(other, "ldexp_", "other", 2)
    if _scales_by_power(x, exponent):
        return x.mul_(functions["pow"](2.0, exponent))
    return x.copy_(ldexp(x, exponent))


publish(_ldexp, "ldexp", ldexp.__doc__ or "", method)
publish(_ldexp_, "ldexp_", "`ldexp` in place.", method)
alias("ldexp_", _ldexp_, as_method=False)


# -- of torch.special alone -----------------------------------------------------------------------------------


def _of_one(op: Pointwise) -> Callable[..., Any]:
    def of_tensor(input: Tensor, *, out: Any = None) -> Any:
        return run(op, (tensor_operand(input, op.name, "input", 1),), out)

    return _publish(of_tensor, op)


def _of_two(op: Pointwise) -> Callable[..., Any]:
    """Bind an operator on two tensors, or a tensor and a number."""

    def of_both(input: Any, other: Any, *, out: Any = None) -> Any:
        return run(op, _pair(op, input, other), out)

    return _publish(of_both, op)


def _of_degree(op: Pointwise) -> Callable[..., Any]:
    """Return a polynomial of degree n."""

    def of_both(x: Any, n: Any, *, out: Any = None) -> Any:
        if op in (ops.laguerre, ops.legendre):
            _require_finite_work(op, x, n)
        return run(op, _pair(op, x, n), out)

    return _publish(of_both, op)


def _require_finite_work(op: Pointwise, x: Any, n: Any) -> None:
    """Raise RuntimeError for a degree with too many steps of the recurrence for a GPU. On the CPU the kernel raises."""
    if (
        isinstance(x, Tensor)
        and x.meta.device.type == "cuda"
        and isinstance(n, int | float)
        and ops.MOST_STEPS < n < 1 << 63
    ):
        raise RuntimeError(
            f"{op.name}: degree {n} is too high: its recurrence has more than {ops.MOST_STEPS} steps"
        )


def _pair(op: Pointwise, one: Any, two: Any) -> tuple[Any, Any]:
    if not (isinstance(one, Tensor) or isinstance(two, Tensor)):
        tensor_operand(one, op.name, "input", 1)
    return operand(one, op.name, "input", 1), operand(two, op.name, "other", 2)


def _publish(define: Callable[..., Any], op: Pointwise) -> Callable[..., Any]:
    define.__name__ = define.__qualname__ = op.name
    define.__module__, define.__doc__ = "torch.special", op.summary
    public: Callable[..., Any] = accepting(define, op.name)
    return public


airy_ai = _of_one(ops.airy_ai)
bessel_j0, bessel_j1 = _of_one(ops.j0), _of_one(ops.j1)
bessel_y0, bessel_y1 = _of_one(ops.y0), _of_one(ops.y1)
entr, erfcx = _of_one(ops.entr), _of_one(ops.erfcx)
i0e, i1, i1e = _of_one(ops.i0e), _of_one(ops.i1), _of_one(ops.i1e)
log_ndtr, ndtri = _of_one(ops.log_ndtr), _of_one(ops.ndtri)
modified_bessel_i0, modified_bessel_i1 = _of_one(ops.modified_i0), _of_one(ops.modified_i1)
modified_bessel_k0, modified_bessel_k1 = _of_one(ops.k0), _of_one(ops.k1)
scaled_modified_bessel_k0, scaled_modified_bessel_k1 = _of_one(ops.k0e), _of_one(ops.k1e)
spherical_bessel_j0 = _of_one(ops.spherical_j0)
xlog1py, zeta = _of_two(ops.xlog1py), _of_two(ops.zeta)
chebyshev_polynomial_t, chebyshev_polynomial_u = _of_degree(ops.chebyshev_t), _of_degree(ops.chebyshev_u)
chebyshev_polynomial_v, chebyshev_polynomial_w = _of_degree(ops.chebyshev_v), _of_degree(ops.chebyshev_w)
shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u = (
    _of_degree(ops.shifted_t),
    _of_degree(ops.shifted_u),
)
shifted_chebyshev_polynomial_v, shifted_chebyshev_polynomial_w = (
    _of_degree(ops.shifted_v),
    _of_degree(ops.shifted_w),
)
hermite_polynomial_h, hermite_polynomial_he = _of_degree(ops.hermite_h), _of_degree(ops.hermite_he)
laguerre_polynomial_l, legendre_polynomial_p = _of_degree(ops.laguerre), _of_degree(ops.legendre)


def ndtr(input: Tensor, *, out: Any = None) -> Any:
    """Return the normal distribution's cumulative probability of each element."""
    x: Any = tensor_operand(input, "special_ndtr", "input", 1)
    x = x / math.sqrt(2)
    return deliver((1 + x.erf()) * 0.5, out)
