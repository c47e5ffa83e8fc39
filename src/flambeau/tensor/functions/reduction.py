"""Reductions and scans."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU
from flambeau.core.dtype import BOOL, FLOATING, bool_, dtype, float32, float64, promote_types
from flambeau.core.errors import type_name
from flambeau.core.layout import wrap_dim
from flambeau.ops.copy import checked_scalar, wide_scalar
from flambeau.ops.linalg.matmul import c_name
from flambeau.ops.op import Op
from flambeau.ops.reduce import reduction as ops
from flambeau.ops.reduce import scan
from flambeau.tensor import autocast
from flambeau.tensor.arguments import return_types
from flambeau.tensor.arguments.arg_errors import KINDS, IntOrTuple, Number
from flambeau.tensor.arguments.extents import require_data
from flambeau.tensor.arguments.integers import as_int, int_or_none
from flambeau.tensor.arguments.options import integer
from flambeau.tensor.arguments.public import F, behind, both, function, functions, method, method_of
from flambeau.tensor.call import call, call_into, unary
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.functions.norms import matrix_norm
from flambeau.tensor.functions.views import dims_given
from flambeau.tensor.out_argument import deliver, require_dtype, run, run_cast
from flambeau.tensor.settings import alert_not_deterministic
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor


def _dims(dim: Any, function: str) -> Any:
    """Return `dim` in the form of operator params: None, an int, or a tuple of ints."""
    if dim is None or dim.__class__ is int:
        return dim
    if isinstance(dim, (tuple, list)):
        dims = tuple([int(d) if at and d.__class__ is bool else int_or_none(d) for at, d in enumerate(dim)])
        if None not in dims:
            return dims
    elif (one := int_or_none(dim)) is not None:
        return one
    raise TypeError(f"{function}(): argument 'dim' must be tuple of ints, not {type_name(dim)}")


def _one_dim(dim: Any, function: str) -> int:
    if dim.__class__ is int:
        return dim
    one = int_or_none(dim)
    if one is None:
        raise TypeError(f"{function}(): argument 'dim' (position 1) must be int, not {type_name(dim)}")
    return one


def _reduce(
    op: Op, name: str, input: Tensor, dim: Any, keepdim: bool, kind: dtype | None, out: Any
) -> Tensor:
    """Run a reduction such as sum, prod or mean, with the dtype of `out` if it is not None."""
    if out is not None:
        if kind is not None:
            require_dtype(kind, out)
        kind = out.dtype
    return run(op, (input,), (_dims(dim, name), keepdim, kind), out)


_ABSENT: Any = object()


def _bind_reduction(op: Op, kinds: tuple[type, ...], whole: Any = None) -> Callable[[F], F]:
    """Return a decorator that binds a reduction and launches `op` directly for simple calls, without the argument
    parser.

    A call is simple if its arguments are a tensor, a dimension of a type in `kinds` and a bool; see `behind`.

    Args:
        op: The operator, with the parameters (dim, keepdim, dtype).
        kinds: Possible types of the dimension: int, or a tuple of ints.
        whole: The dimension of a call without one.
    """

    def front(checked: Any) -> Any:
        def call(
            input: Any = _ABSENT, dim: Any = _ABSENT, keepdim: Any = _ABSENT, /, *args: Any, **given: Any
        ) -> Any:
            at: Any = dim
            keep, others = keepdim, len(given)
            if given:
                if "dim" in given and at is _ABSENT:
                    at, others = given["dim"], others - 1
                if "keepdim" in given and keep is _ABSENT:
                    keep, others = given["keepdim"], others - 1
            if not (others or args) and isinstance(input, Tensor):
                if at is _ABSENT:
                    if keep is _ABSENT:
                        return unary(op, input, (whole, False, None))
                elif at.__class__ in kinds and (at.__class__ is int or _has_ints(at)):
                    if keep is _ABSENT:
                        return unary(op, input, (at, False, None))
                    if keep.__class__ is bool:
                        return unary(op, input, (at, keep, None))
            placed = [value for value in (input, dim, keepdim) if value is not _ABSENT]
            return checked(*placed, *args, **given)

        return call

    return behind(front)


def _has_ints(values: Any) -> bool:
    return {each.__class__ for each in values} == {int}


@_bind_reduction(ops.sum_, (int, tuple))
@signatures("""
sum(input: Tensor, *, dtype: dtype | None=)
sum(input: Tensor, dim: IntOrTuple | None, keepdim: bool=, *, dtype: dtype | None=)
""")
def sum(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the sum of all elements, or along `dim` (an int or several). Sums of integers and booleans are int64."""
    return _reduce(ops.sum_, "sum", input, dim, keepdim, dtype, out)


@both
def nansum(
    input: Tensor,
    dim: IntOrTuple | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sum, counting NaN as zero. RuntimeError for complex input."""
    if input.dtype.is_complex:
        raise RuntimeError("nansum does not support complex inputs")
    return _reduce(ops.nansum, "nansum", input, dim, keepdim, dtype, out)


@_bind_reduction(ops.mean, (int, tuple))
@signatures("""
mean(input: Tensor, *, dtype: dtype | None=)
mean(input: Tensor, dim: IntOrTuple | None, keepdim: bool=, *, dtype: dtype | None=)
""")
def mean(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the mean over all elements or over `dim`.

    Raises:
        RuntimeError: If the input is an integer tensor and `dtype` is None.
    """
    return _reduce(ops.mean, "mean", input, dim, keepdim, dtype, out)


@both
def nanmean(
    input: Tensor,
    dim: IntOrTuple | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the mean over the elements that are not NaN. RuntimeError for integers."""
    if input.dtype.category < FLOATING:
        raise RuntimeError(
            "nanmean(): expected input to have floating point or complex dtype but got "
            f"{input.dtype.torch_name}"
        )
    if input.dtype.is_complex and input.device is CPU:
        raise RuntimeError("nansum on CPU does not support complex inputs")
    return _reduce(ops.nanmean, "nanmean", input, dim, keepdim, dtype, out)


@_bind_reduction(ops.prod, (int,))
@signatures("""
prod(input: Tensor, *, dtype: dtype | None=)
prod(input: Tensor, dim: int, keepdim: bool=, *, dtype: dtype | None=)
""")
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the product over all elements or over one `dim`."""
    dim = None if dim is None else _one_dim(dim, "prod")
    return _reduce(ops.prod, "prod", input, dim, keepdim, dtype, out)


@_bind_reduction(ops.amax, (int, tuple), ())
def amax(
    input: Tensor, dim: IntOrTuple | None = (), keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the largest values over `dim`, all by default. NaN wins."""
    return _extreme(ops.amax, "amax", input, dim, keepdim, out)


@_bind_reduction(ops.amin, (int, tuple), ())
def amin(
    input: Tensor, dim: IntOrTuple | None = (), keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the smallest values over `dim`, all by default. NaN wins."""
    return _extreme(ops.amin, "amin", input, dim, keepdim, out)


def _extreme(op: Op, name: str, input: Tensor, dim: Any, keepdim: bool, out: Tensor | None) -> Tensor:
    if out is not None and out.dtype is not input.dtype:
        raise RuntimeError(
            f"Expected the dtype for input and out to match, but got {input.dtype.torch_name} for input's "
            "dtype "
            f"and {out.dtype.torch_name} for out's dtype."
        )
    return run(op, (input,), (_dims(dim, name), keepdim, None), out)


@both
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False, out: Any = None) -> Any:
    """Return (min, max) over all elements or over one `dim`."""
    return return_types.aminmax.of(
        run(ops.aminmax, (input,), (None if dim is None else _one_dim(dim, "aminmax"), keepdim, None), out),
        out,
    )


@both
@signatures(
    """
max(input: Tensor)
max(input: Tensor, dim: int, keepdim: bool=)
max(input: Tensor, other: Tensor)
""",
    shown="max(input: Tensor, dim: int | None=None, keepdim: bool=False, *, out: Any=None)",
)
def max(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the largest element; `max(input, dim, keepdim)`: values and indices; `max(input, other)`: elementwise."""
    return _max_or_min("max", ops.max_all, ops.max_dim, input, args, kwargs)


@both
@signatures(
    """
min(input: Tensor)
min(input: Tensor, dim: int, keepdim: bool=)
min(input: Tensor, other: Tensor)
""",
    shown="min(input: Tensor, dim: int | None=None, keepdim: bool=False, *, out: Any=None)",
)
def min(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the smallest element; `min(input, dim, keepdim)`: values and indices; `min(input, other)`: elementwise."""
    return _max_or_min("min", ops.min_all, ops.min_dim, input, args, kwargs)


def _max_or_min(name: str, whole: Op, along: Op, input: Tensor, args: Any, kwargs: Any) -> Any:
    if (args and isinstance(args[0], Tensor)) or "other" in kwargs:
        return functions[f"{name}imum"](input, *args, **kwargs)
    if not args and "dim" not in kwargs:
        return _whole(name, whole, input, **kwargs)
    return _along(name, along, input, *args, **kwargs)


def _whole(name: str, op: Op, input: Tensor, *, out: Tensor | None = None) -> Any:
    return run_cast(op, (input,), (None, False, None), out)


def _along(name: str, op: Op, input: Tensor, dim: int, keepdim: bool = False, *, out: Any = None) -> Any:
    results = run(op, (input,), (_one_dim(dim, name), keepdim, None), out)
    kind: type[return_types.NamedResult] = getattr(return_types, name)
    return kind.of(results, out)


@_bind_reduction(ops.argmax, (int,))
def argmax(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the index of the largest element (the first, or the first NaN), of the flattened input or along `dim`."""
    return _index(ops.argmax, "argmax", input, dim, keepdim, out)


@_bind_reduction(ops.argmin, (int,))
def argmin(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the index of the smallest element (the first, or the first NaN), of the flattened input or along `dim`."""
    return _index(ops.argmin, "argmin", input, dim, keepdim, out)


def _index(op: Op, name: str, input: Tensor, dim: int | None, keepdim: bool, out: Tensor | None) -> Tensor:
    dim = None if dim is None else _one_dim(dim, name)
    return run(op, (input,), (dim, keepdim, None), out)


@_bind_reduction(ops.all_, (int,))
@signatures("""
all(input: Tensor)
all(input: Tensor, dim: IntTuple | None=, keepdim: bool=)
all(input: Tensor, dim: int, keepdim: bool=)
""")
def all(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return True if all elements are nonzero, over all dimensions or `dim`. The dtype is bool; uint8 for uint8."""
    return _test(ops.all_, "all", input, dim, keepdim, out)


@_bind_reduction(ops.any_, (int,))
@signatures("""
any(input: Tensor)
any(input: Tensor, dim: IntTuple | None=, keepdim: bool=)
any(input: Tensor, dim: int, keepdim: bool=)
""")
def any(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return True if an element is nonzero, over all dimensions or `dim`. The dtype is bool; uint8 for uint8."""
    return _test(ops.any_, "any", input, dim, keepdim, out)


def _test(op: Op, name: str, input: Tensor, dim: Any, keepdim: bool, out: Tensor | None) -> Tensor:
    if out is not None and out.dtype.name not in ("bool", "uint8"):
        raise RuntimeError(f"{name} only supports bool tensor for result, got: {out.dtype.torch_name}")
    dims = _dims(dim, name)
    if dims == () and input.meta.ndim:  # each element is reduced separately
        input, dims, keepdim = input.unsqueeze(0), (0,), False
    if out is not None and out.dtype is bool_:
        return run_cast(op, (functions["ne"](input, 0),), (dims, keepdim, None), out)
    return run_cast(op, (input,), (dims, keepdim, None), out)


@function
@signatures("""
count_nonzero(input: Tensor, dim: IntTuple)
count_nonzero(input: Tensor, dim: int | None=)
""")
def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """Return the number of nonzero elements, of all or along `dim`, as int64."""
    return call(ops.count_nonzero, (input,), (_dims(dim, "count_nonzero"), False, None))


@signatures(shown="Tensor.count_nonzero(dim: IntOrTuple | None=None)")
def _count_nonzero(self: Tensor, *dims: Any, dim: Any = None) -> Tensor:
    return count_nonzero(self, dims_given(dims, dim, "count_nonzero"))


method_of(count_nonzero, _count_nonzero)


# -- spread ---------------------------------------------------------------------------------------------


@both
@signatures(
    """
var(input: Tensor, dim: IntOrTuple | None, unbiased: bool=, keepdim: bool=)
var(input: Tensor, dim: IntOrTuple | None=, *, correction: Number | None=, keepdim: bool=)
var(input: Tensor, unbiased: bool=)
""",
    shown="""
var(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False,
    out: Tensor | None=None)
""",
)
def var(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Return the variance: `var(input, dim=None, *, correction=1, keepdim=False)`, or `var(input, dim, unbiased,
    keepdim)`.
    """
    return _spread(ops.var, "var", input, dim, args, kwargs)


@both
@signatures(
    """
std(input: Tensor, dim: IntOrTuple | None, unbiased: bool=, keepdim: bool=)
std(input: Tensor, dim: IntOrTuple | None=, *, correction: Number | None=, keepdim: bool=)
std(input: Tensor, unbiased: bool=)
""",
    shown="""
std(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False,
    out: Tensor | None=None)
""",
)
def std(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Return the standard deviation: `std(input, dim=None, *, correction=1, keepdim=False)`, or with `unbiased`."""
    return _spread(ops.std, "std", input, dim, args, kwargs)


@function
@signatures(
    """
var_mean(input: Tensor, dim: IntOrTuple | None, unbiased: bool=, keepdim: bool=)
var_mean(input: Tensor, dim: IntOrTuple | None=, *, correction: Number | None=, keepdim: bool=)
var_mean(input: Tensor, unbiased: bool=)
""",
    shown="""
var_mean(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False,
    out: TensorList | None=None)
""",
)
def var_mean(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return (variance, mean); arguments as `var`."""
    return _spread(ops.var_mean, "var_mean", input, dim, args, kwargs)


@function
@signatures(
    """
std_mean(input: Tensor, dim: IntOrTuple | None, unbiased: bool=, keepdim: bool=)
std_mean(input: Tensor, dim: IntOrTuple | None=, *, correction: Number | None=, keepdim: bool=)
std_mean(input: Tensor, unbiased: bool=)
""",
    shown="""
std_mean(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False,
    out: TensorList | None=None)
""",
)
def std_mean(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return (standard deviation, mean); arguments as `std`."""
    return _spread(ops.std_mean, "std_mean", input, dim, args, kwargs)


def _spread(op: Op, name: str, input: Tensor, dim: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(dim, bool):  # std(input, unbiased)
        dim, args = None, (dim, *args)
    dims, correction, keepdim, out = _spread_arguments(name, dim, *args, **kwargs)
    around = ops.reduced_dims(dims, input.ndim)
    count = math.prod([input.meta.shape[d] for d in around])
    if count <= correction and input.dtype.category >= FLOATING and input.numel():
        warn_program(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction "
            "factor (input numel divided by output numel).",
            UserWarning,
        )
    return run_cast(op, (input,), (dims, keepdim, None, correction), out)


_MISSING: Any = object()


def _spread_arguments(
    name: str, dim: Any, unbiased: Any = _MISSING, keepdim: bool = False, *, correction: Any = _MISSING,
    out: Any = None,
) -> tuple[Any, float, bool, Any]:  # fmt: skip
    if unbiased is not _MISSING and correction is not _MISSING:
        raise TypeError(f"{name}() received an invalid combination of arguments: unbiased and correction")
    if correction is _MISSING or correction is None:
        correction = 1 if unbiased is _MISSING else int(bool(unbiased))
    return _dims(dim, name), correction, keepdim, out


# -- norms ----------------------------------------------------------------------------------------------


@function
def norm(
    input: Tensor,
    p: Any = "fro",
    dim: IntOrTuple | None = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: dtype | None = None,
) -> Tensor:
    """Return the p-norm of the elements, or of each vector along `dim`; "fro" is p = 2.

    "nuc" is the nuclear norm of matrices, in the last two dimensions or the two in `dim`.
    """
    if not (p is None or isinstance(p, str) or KINDS["Number"].fits(p)):
        raise TypeError(
            f"linalg_vector_norm(): argument 'ord' (position 2) must be Number, not {type_name(p)}"
        )
    if p is None or p == "fro":
        p = 2.0
    elif p == "nuc":
        return matrix_norm(input, p, (-2, -1) if dim is None else dim, keepdim, dtype=dtype, out=out)
    elif isinstance(p, str):
        raise RuntimeError(f"linalg.matrix_norm: Order {p} not supported.")
    elif isinstance(p, complex):
        raise RuntimeError("linalg.vector_norm: Expected a non-complex scalar as the order of norm.")
    if dtype is not None:
        _check_norm_dtype(input, dtype)
    return run(ops.norm, (input,), (_dims(dim, "norm"), keepdim, dtype, float(wide_scalar(p))), out)


def _norm_method(
    self: Tensor,
    p: Any = "fro",
    dim: IntOrTuple | None = None,
    keepdim: bool = False,
    dtype: dtype | None = None,
) -> Tensor:
    return norm(self, p, dim, keepdim, dtype=dtype)


method_of(norm, _norm_method)


def _check_norm_dtype(input: Tensor, kind: dtype) -> None:
    """Raise RuntimeError for a dtype in which the norm of a tensor cannot be computed."""
    name, own = "linalg.vector_norm", input.dtype
    if not (kind.is_floating_point or kind.is_complex):
        raise RuntimeError(f"{name}: dtype should be floating point or complex, but got {kind.torch_name}")
    if kind.is_complex is not own.is_complex:
        must = "complex for complex" if own.is_complex else "real for real"
        raise RuntimeError(f"{name}: dtype should be {must} inputs, but got {kind.torch_name}")
    if promote_types(own, kind) is not kind:
        raise RuntimeError(
            f"{name}: the dtype of the input ({own.torch_name}) should be convertible without narrowing to the "
            f"specified dtype ({kind.torch_name})"
        )


@both
def logsumexp(input: Tensor, dim: IntOrTuple, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return log(sum(exp(input))) over `dim`, without overflow."""
    return run_cast(ops.logsumexp, (input,), (_dims(dim, "logsumexp"), keepdim, None), out)


# -- order statistics -----------------------------------------------------------------------------------


@both
@signatures("""
median(input: Tensor)
median(input: Tensor, dim: int, keepdim: bool=)
""")
def median(input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return the (lower) median of all elements, or (values, indices) along `dim`. NaN wins."""
    if dim is None:
        return call(ops.median_all, (input,), (None, False, None))
    return _along("median", ops.median, input, dim, keepdim, out=out)


@both
@signatures("""
nanmedian(input: Tensor)
nanmedian(input: Tensor, dim: int, keepdim: bool=)
""")
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return the median of the elements that are not NaN; see `median`."""
    if dim is None:
        return call(ops.nanmedian_all, (input,), (None, False, None))
    return _along("nanmedian", ops.nanmedian, input, dim, keepdim, out=out)


@both
def mode(input: Tensor, dim: int = -1, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return (values, indices): the most frequent value along `dim` (of several the smallest), and its index."""
    return _along("mode", ops.mode, input, dim, keepdim, out=out)


@both
@signatures("""
quantile(input: Tensor, q: Tensor | float, dim: int | None=, keepdim: bool=, *, interpolation: str=)
""")
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear",
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the q-th quantiles along `dim`; a tensor `q` adds a leading dimension. A row with a NaN gives NaN."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, out)


@both
@signatures("""
nanquantile(input: Tensor, q: Tensor | float, dim: int | None=, keepdim: bool=, *, interpolation: str=)
""")
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear",
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the quantiles of the elements that are not NaN; see `quantile`."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, out)


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(
    name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, out: Tensor | None
) -> Tensor:
    if autocast.threads:
        (input,) = autocast.cast(ops.quantile.autocast, input)
    if input.numel() == 0:
        raise RuntimeError("quantile() input tensor must be non-empty")
    if input.dtype not in (float32, float64):
        raise RuntimeError("quantile() input tensor must be either float or double dtype")
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            "quantile() interpolation must be one of linear, lower, higher, midpoint or nearest, but got "
            + interpolation
        )
    if isinstance(q, Tensor):
        if q.ndim > 1:
            raise RuntimeError("quantile() q must be a scalar or 1D tensor")
        if q.dtype is not input.dtype:
            raise RuntimeError("quantile() q tensor must be same dtype as the input tensor")
        probabilities: Any = q
        if q.device is CPU and not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise RuntimeError("quantile() q values must be in the range [0, 1]")
    else:
        if not 0 <= q <= 1:
            raise RuntimeError(f"quantile() q must be in the range [0, 1] but got {q:g}")
        q = tensor(q, dtype=input.dtype, device=input.device)
    dim = None if dim is None else _one_dim(dim, name)
    params = (dim, keepdim, interpolation, name == "nanquantile")
    return run(ops.quantile, (input, q), params, out)


# -- scans ----------------------------------------------------------------------------------------------


@both
def cumsum(input: Tensor, dim: int, *, dtype: dtype | None = None, out: Tensor | None = None) -> Tensor:
    """Return running sums along `dim`; integers and booleans in int64."""
    return _scan(scan.cumsum, "cumsum", input, dim, dtype, out)


@both
def cumprod(input: Tensor, dim: int, *, dtype: dtype | None = None, out: Tensor | None = None) -> Tensor:
    """Return running products along `dim`; integers and booleans in int64."""
    return _scan(scan.cumprod, "cumprod", input, dim, dtype, out)


def _scan(op: Op, name: str, input: Tensor, dim: int, kind: dtype | None, out: Tensor | None) -> Tensor:
    if out is not None:
        kind = kind or out.dtype
    if kind is bool_:
        raise NotImplementedError(f"\"{name}_out_{input.device.type}\" not implemented for 'Bool'")
    return run(op, (input,), (_one_dim(dim, name), kind), out)


def _in_place(op: Op, name: str) -> None:
    def define(self: Tensor, dim: int, *, dtype: dtype | None = None) -> Tensor:
        kind = dtype or self.dtype
        if kind is bool_:
            raise NotImplementedError(f"\"{name}_out_{self.device.type}\" not implemented for 'Bool'")
        if kind is not self.dtype:
            raise RuntimeError(
                f"Bad in-place call: input tensor dtype {c_name(self.dtype)} and output tensor dtype {c_name(kind)} "
                "should match"
            )
        return call_into(op, (self,), (self,), (_one_dim(dim, name), kind))

    define.__name__ = name + "_"
    define.__doc__ = f"`{name}` in place."
    method(define)


_in_place(scan.cumsum, "cumsum")
_in_place(scan.cumprod, "cumprod")


@both
def cummax(input: Tensor, dim: int, *, out: Any = None) -> Any:
    """Return (values, indices): the running maxima along `dim`, and the last index at which each was reached."""
    return return_types.cummax.of(run(scan.cummax, (input,), (_one_dim(dim, "cummax"), None), out), out)


@both
def cummin(input: Tensor, dim: int, *, out: Any = None) -> Any:
    """Return (values, indices): running minima along `dim` and where each was (last) reached."""
    return return_types.cummin.of(run(scan.cummin, (input,), (_one_dim(dim, "cummin"), None), out), out)


@both
def logcumsumexp(input: Tensor, dim: int, *, out: Tensor | None = None) -> Tensor:
    """Return log of the running sums of exp(input) along `dim`."""
    return run(scan.logcumsumexp, (input,), (_one_dim(dim, "logcumsumexp"), None), out)


@both
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the n-th differences of adjacent elements along `dim`."""
    found: Tensor = deliver(_diff(input, n, dim, prepend, append), out)
    return found


def _diff(input: Tensor, n: int, dim: int, prepend: Tensor | None, append: Tensor | None) -> Tensor:
    if input.ndim == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if as_int(n) < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    parts = [part for part in (prepend, input, append) if part is not None]
    if n == 0 and len(parts) == 1:
        return input.clone()
    dim = wrap_dim(dim, input.ndim)
    if builtins.any(part.ndim != input.ndim for part in parts):
        raise RuntimeError("diff expects prepend or append to be the same dimension as input")
    if n == 0:
        return input.clone()
    if len(parts) > 1:
        input = functions["cat"](parts, dim)
    size = input.meta.shape[dim]
    if n >= size:
        return input.narrow(dim, 0, 0).clone()
    for _ in range(n):
        size -= 1
        after, before = input.narrow(dim, 1, size), input.narrow(dim, 0, size)
        input = after.logical_xor(before) if input.dtype.name == "bool" else after - before
    return input


@both
def trace(input: Tensor) -> Tensor:
    """Return the sum of a matrix's diagonal."""
    if input.dtype.category == BOOL and input.device is CPU:
        raise NotImplementedError("\"trace\" not implemented for 'Bool'")
    return call(ops.trace, (input,))


# -- counting -------------------------------------------------------------------------------------------


@both
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Return the number of times that each value occurs in a vector of non-negative ints; with `weights`, their sums.

    Reads the largest value back, which waits for the device.
    """
    if input.dtype.category >= FLOATING or input.dtype.name == "bool":
        name = f"bincount_{input.device.type}"
        raise NotImplementedError(f"\"{name}\" not implemented for '{input.dtype.torch_name}'")
    minlength = integer(minlength, "bincount", "minlength", 3)
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    require_data(input, "bincount")
    if input.ndim != 1 or (input.numel() and input.min().item() < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and (weights.ndim != 1 or weights.numel() != input.numel()):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if weights is not None and input.device is not CPU:
        alert_not_deterministic("_bincount_cuda")
    size = input.max().item() + 1 if input.numel() else 0
    size = size if size > minlength else minlength
    args = (input,) if weights is None or not input.numel() else (input, weights)
    return call(scan.bincount, args, (size,))


@both
def histc(
    input: Tensor, bins: int = 100, min: Number = 0, max: Number = 0, *, out: Tensor | None = None
) -> Tensor:
    """Return the number of elements in each of `bins` equal bins between `min` and `max`; equal ends select the input's
    range.

    The input is float32 or float64; on the CPU also float16 and bfloat16, on CUDA also integers.

    Raises:
        RuntimeError: If an end is not finite, or `max` is less than `min`.
    """
    bins = integer(bins, "histc", "bins", 2)
    on_cpu = input.device is CPU
    scan.histc.rule((input.meta, float, float), (1,))
    if not on_cpu and input.dtype.is_floating_point:
        alert_not_deterministic("_histc_cuda with floating point input")
    if bins <= 0:
        where = f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0"
        raise RuntimeError(where if on_cpu else "bins must be > 0")
    least, most = _ends(input, min, max, "torch.histc: " if on_cpu else "")
    return run(scan.histc, (input, least, most), (bins,), out)


def _ends(input: Tensor, least: Any, most: Any, name: str) -> tuple[Any, Any]:
    """Return the range of the bins: the input's minimum and maximum if `least` and `most` are equal."""
    least, most = (checked_scalar(x, input.dtype) for x in (least, most))
    if least == most and input.numel():
        least, most = (x.item() for x in aminmax(input))
    if least == most:
        least, most = least - 1, most + 1
    if not (math.isfinite(least) and math.isfinite(most)):
        raise RuntimeError(f"{name}range of [{least:g}, {most:g}] is not finite")
    if least > most:
        raise RuntimeError(f"{name}max must be larger than min")
    return least, most
