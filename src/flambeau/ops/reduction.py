"""The reduction family: dimensions of the input fold into one value each.

`reduction` makes a record from arithmetic on a plain array; the family supplies dims, the result's shape,
dtypes and refusals, and the conversions of the host body.

# Note [How a reduction body computes]
The input is brought to two axes, the dimensions kept and those reduced, and the arithmetic folds the last.
Sums of float32 and float64 are NumPy's pairwise sums: they run along memory where the reduced dimensions
do, and otherwise over a copy, so that the error stays logarithmic in the length for every layout. float16,
bfloat16 and complex32 are widened, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import COMPLEX, FLOATING, INTEGRAL, bool_, dtype, int64, uint8
from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Kernel, Launch, Routine, Steps
from flambeau.driver.api import Fold as Form
from flambeau.ops import quantile_gradients
from flambeau.ops.blocks import SHORT, contiguous, fold_rows
from flambeau.ops.copy import caster
from flambeau.ops.gradients import by_place, conj, count, restored, shared_among
from flambeau.ops.op import (
    MISSING,
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    define,
)
from flambeau.ops.pointwise import ALL, FLOATING_OR_COMPLEX, REALS, wide

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...] | int | None
Fold = Callable[..., Any]
"""`fold(x, *extra)`: folds the last axis of a two-dimensional array; an array, or a tuple of several."""
Empty = Callable[[str, Meta, tuple[int, ...], bool], None]


_RUN = 16  # summands one after the other, as many as in NumPy's own pairwise sums


# -- shapes ---------------------------------------------------------------------------------------------


def reduced_dims(dims: Dims, ndim: int, name: str = "") -> tuple[int, ...]:
    """`dims` counted from the front and sorted; None and () are all. Raises as PyTorch does."""
    if dims is None or dims == ():
        return tuple(range(ndim))
    wrapped = [wrap_dim(d, ndim) for d in (dims if isinstance(dims, tuple) else (dims,))]
    for at, dim in enumerate(wrapped):
        if dim in wrapped[:at]:
            raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return tuple(sorted(wrapped)) if ndim else ()


def reduced_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple([1 if d in dims else n for d, n in enumerate(shape)])
    return tuple([n for d, n in enumerate(shape) if d not in dims])


def grouping(shape: Sequence[int], dims: Sequence[int]) -> Callable[[Array], Array]:
    """What brings an array of `shape` to two axes: the dims kept, then those reduced; a view where it can be."""
    kept = [d for d in range(len(shape)) if d not in dims]
    axes = (*kept, *dims)
    rows = math.prod([shape[d] for d in kept]), math.prod([shape[d] for d in dims])
    if axes != tuple(range(len(shape))):
        return lambda x: _as_rows(x.transpose(axes), rows)
    return (lambda x: x) if rows == tuple(shape) else lambda x: x.reshape(rows)


def _as_rows(x: Array, rows: tuple[int, int]) -> Array:
    try:
        return x.reshape(rows, copy=False)
    except ValueError:
        return contiguous(x).reshape(rows)


def grouped(x: Array, dims: Sequence[int]) -> Array:
    """`x` as two axes: the dims kept, then those reduced."""
    return grouping(x.shape, dims)(x)


# -- arithmetic -----------------------------------------------------------------------------------------


def pairwise_sum(x: Array) -> Array:
    """Sums along the last axis with an error that grows with the logarithm of its length."""
    if x.dtype.kind not in "fc" or x.shape[1] < _RUN or x.strides[1] == x.itemsize:
        return np.asarray(np.add.reduce(x, axis=1))
    if x.strides[0] == x.itemsize and len(x) >= _RUN:
        return _sum_of_columns(x.T)
    return np.asarray(np.add.reduce(contiguous(x), axis=1))


def _sum_of_columns(x: Array) -> Array:
    """Sums along the first axis: rows are added by runs, then runs of runs."""
    while len(x) > _RUN:
        whole = len(x) // _RUN * _RUN
        runs = x[:whole].reshape(-1, _RUN, x.shape[1], copy=False)
        rest = [np.add.reduce(x[whole:], axis=0)[None]] if whole < len(x) else []
        x = np.concatenate((np.add.reduce(runs, axis=1), *rest))
    return np.asarray(np.add.reduce(x, axis=0))


def _sum(x: Array) -> Array:
    return pairwise_sum(x)


def _product(x: Array) -> Array:
    return np.asarray(np.multiply.reduce(x, axis=1))


def _greatest(x: Array) -> Array:
    return fold_rows(np.maximum, x)


def _least(x: Array) -> Array:
    return fold_rows(np.minimum, x)


def _nansum(x: Array) -> Array:
    return (
        pairwise_sum(np.where(np.isnan(x), x.dtype.type(0), x)) if x.dtype.kind in "fc" else pairwise_sum(x)
    )


def _mean(x: Array) -> Array:
    return np.asarray(pairwise_sum(x) / x.real.dtype.type(x.shape[1]))


def _nanmean(x: Array) -> Array:
    return np.asarray(_nansum(x) / np.count_nonzero(~np.isnan(x), axis=1).astype(x.real.dtype))


_UFUNCS: dict[Fold, np.ufunc] = {
    _sum: np.add, _mean: np.add, _product: np.multiply, _greatest: np.maximum, _least: np.minimum,
}  # fmt: skip


def _median_place(count: Any) -> Any:
    return np.maximum(count - 1, 0) // 2


def _var(x: Array, correction: float) -> tuple[Array, Array]:
    """Variance and mean by two passes, in doubles, as PyTorch's CPU computes them."""
    x = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)
    mean = pairwise_sum(x) / x.shape[1] if x.shape[1] else np.full(x.shape[0], np.nan, x.dtype)
    away = x - mean[:, None]
    squares = pairwise_sum(away.real**2)
    if x.dtype.kind == "c":
        squares = squares + pairwise_sum(away.imag**2)
    return squares / np.float64(max(x.shape[1] - correction, 0)), mean


def _std(x: Array, correction: float) -> tuple[Array, Array]:
    variance, mean = _var(x, correction)
    return np.sqrt(variance), mean


def _norm(x: Array, p: float) -> Array:
    size = np.abs(x)
    if size.dtype == np.float32:
        size = size.astype(np.float64)
    if p == 0:
        return np.asarray(np.add.reduce(size != 0, axis=1, dtype=size.dtype))
    if math.isinf(p):
        if not x.shape[1]:
            return np.zeros(x.shape[0])
        return np.asarray(np.maximum.reduce(size, axis=1) if p > 0 else np.minimum.reduce(size, axis=1))
    if p == 1:
        return pairwise_sum(size)
    if p == 2:
        return np.sqrt(pairwise_sum(size * size))
    return pairwise_sum(size**p) ** (1 / p)


def _logsumexp(x: Array) -> Array:
    if not x.shape[1]:
        return np.full(x.shape[0], -np.inf)
    top = np.maximum.reduce(x.real, axis=1)
    top = np.where(np.isfinite(top), top, 0).astype(x.real.dtype)
    return np.asarray(np.log(pairwise_sum(np.exp(x - top[:, None]))) + top)


def _ordered(x: Array) -> Array:
    """Booleans as bytes: `minimum` and `maximum` of NumPy take both, `argmin` is faster."""
    return x.view(np.uint8) if x.dtype == np.bool_ else x


def _nan_or(x: Array, at: Array) -> Array:
    """Where a row has a NaN, the place of its first; else `at`."""
    if x.dtype.kind != "f":
        return at
    nan = np.isnan(x)
    return np.where(nan.any(axis=1), nan.argmax(axis=1), at)


def _kth(x: Array, rank: Array, skip_nan: bool) -> tuple[Array, Array]:
    """The value of a rank (an index into the sorted row) in each row, and where it stands."""
    at = np.argsort(x, axis=1, kind="stable")
    at = np.take_along_axis(at, rank[:, None], 1)[:, 0]
    if not skip_nan:
        at = _nan_or(x, at)
    return np.take_along_axis(x, at[:, None], 1)[:, 0], at


def _median(x: Array) -> tuple[Array, Array]:
    return _kth(x, np.full(x.shape[0], _median_place(x.shape[1])), False)


def _nanmedian(x: Array) -> tuple[Array, Array]:
    valid = x.shape[1] - (
        np.count_nonzero(np.isnan(x), axis=1) if x.dtype.kind == "f" else np.zeros(x.shape[0], int)
    )
    return _kth(x, _median_place(valid), True)


def _global(fold: Callable[[Array], tuple[Array, Array]]) -> Callable[[Array], Array]:
    def first(x: Array) -> Array:
        return fold(x)[0] if x.shape[1] else np.full(x.shape[0], np.nan)

    return first


def _kthvalue(x: Array, k: int) -> tuple[Array, Array]:
    return _kth(x, np.full(x.shape[0], k - 1), True)


def _mode(x: Array) -> tuple[Array, Array]:
    """The smallest of the most frequent values of each row, and the last place that holds it."""
    at = np.argsort(x, axis=1, kind="stable")
    ordered = np.take_along_axis(x, at, 1)
    place = np.arange(x.shape[1])
    starts = np.ones(x.shape, bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)
    best = run.argmax(axis=1)
    found = np.take_along_axis(at, best[:, None], 1)[:, 0]
    return np.take_along_axis(x, found[:, None], 1)[:, 0], found


def _quantile(x: Array, interpolation: str, skip_nan: bool, q: Array) -> Array:
    """Quantiles by rows: (len(q), rows). A row with a NaN gives NaN unless they are skipped."""
    ordered = np.sort(x, axis=1)
    nan = np.isnan(x)
    count = x.shape[1] - np.count_nonzero(nan, axis=1) if skip_nan else np.full(x.shape[0], x.shape[1])
    rank = q[:, None] * np.maximum(count - 1, 0).astype(x.dtype)
    low = np.floor(rank).astype(np.int64)
    high = np.ceil(rank).astype(np.int64)
    if interpolation == "nearest":
        low = high = np.rint(rank).astype(np.int64)
    elif interpolation == "lower":
        high = low
    elif interpolation == "higher":
        low = high
    rows = np.arange(x.shape[0])
    a, b = ordered[rows, low], ordered[rows, high]
    weight = np.full_like(rank, 0.5) if interpolation == "midpoint" else rank - np.floor(rank)
    out = np.where(low == high, a, _lerp(a, b, weight))
    spoiled = count == 0 if skip_nan else nan.any(axis=1)
    return np.where(spoiled, np.nan, out)


def _lerp(a: Array, b: Array, weight: Array) -> Array:
    return np.asarray(np.where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight)))


# -- refusals of empty dimensions -----------------------------------------------------------------------


def _nonempty_for(text: str, error: type[Exception] = RuntimeError) -> Empty:
    """Refuse an empty reduction; with no dim given, in the words `text`."""

    def check(name: str, x: Meta, dims: tuple[int, ...], given: bool) -> None:
        if given:
            for dim in dims:
                if x.shape[dim] == 0:
                    raise IndexError(f"{name}: Expected reduction dim {dim} to have non-zero size.")
        elif x.numel == 0:
            raise error(f"{name}: {text}")

    return check


_SPECIFY = "Expected reduction dim to be specified for input.numel() == 0."
_needs_dim = _nonempty_for(f"{_SPECIFY} Specify the reduction dim with the 'dim' argument.")
_needs_dim_index = _nonempty_for(_SPECIFY, IndexError)
_no_identity = _nonempty_for(
    "cannot compute aminmax over an empty dimension as the operation has no identity."
)


def _anything(name: str, x: Meta, dims: tuple[int, ...], given: bool) -> None:
    """An empty reduction has a value."""


# -- dtypes ---------------------------------------------------------------------------------------------

Result = Callable[[str, dtype, dtype | None], tuple[dtype, dtype]]
"""(name, input's dtype, dtype= or None) -> the dtype computed in and the result's. Raises refusals."""


def _summed(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    out = asked or (int64 if kind.category <= INTEGRAL else kind)
    return out, out


def _averaged(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    out = asked or kind
    if out.category < FLOATING:
        which = "Optional" if asked else "Input"
        raise RuntimeError(
            f"{name}(): could not infer output dtype. {which} dtype must be either a floating point or "
            "complex "
            f"dtype. Got: {out.torch_name}"
        )
    return out, out


def _kept(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    return kind, kind


def _real_kept(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind.category == COMPLEX:
        raise NotImplementedError(f"\"{name}\" not implemented for '{kind.torch_name}'")
    return kind, kind


def _ranked(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind is bool_:
        raise NotImplementedError(f"\"{name}\" not implemented for '{kind.torch_name}'")
    return _real_kept(name, kind, asked)


def _counted(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    return kind, int64


def _tested(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    return bool_, uint8 if kind is uint8 else bool_


def _spread(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind.category < FLOATING:
        raise RuntimeError("std and var only support floating point and complex dtypes")
    return kind, kind.to_real()


def _normed(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind.category < FLOATING:
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {kind.torch_name}"
        )
    kind = asked or kind
    return kind, kind.to_real()


def _whole_or_default(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    assert asked is not None  # the default dtype
    out = asked if kind.category <= INTEGRAL else kind
    return out, out


# -- the family -----------------------------------------------------------------------------------------


class Folded(NamedTuple):
    """What the kernel of a reduction knows: the dims, the dtype computed in, the arithmetic's own params."""

    dims: tuple[int, ...]
    kind: dtype
    extra: tuple[Any, ...]


def reduction(
    name: str,
    fold: Fold,
    result: Result,
    *,
    also: tuple[str, ...] = (),
    empty: Empty = _anything,
    dtypes: tuple[dtype, ...] = ALL,
    label: str | None = None,
    extra: tuple[tuple[Any, ...], ...] = ((),),
    default: bool = False,
    global_form: bool = True,
    check: Callable[[Meta, tuple[int, ...], tuple[Any, ...]], None] | None = None,
    cuda: Form | Routine | None = None,
    derivative: Derivative = MISSING,
) -> Op:
    """Define a reduction. Its params are (dims, keepdim, dtype or None, *extra).

    result: dtypes computed in and stored. `also`: what further outputs hold, "index" (int64) or "input"
    (the input's dtype). `empty`: refuses empty dims. `label`: the name in refusals. `extra`: sample extra params.
    cuda: what real GPUs fold, or the routine where the whole row must be at hand (medians).
    default: the default dtype stands for `dtype` where none is asked. `check(meta, dims, extra)`: more refusals.
    """
    label = label or f"{name}()"

    def rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        x = operands[0]
        assert isinstance(x, Meta)
        if default:
            *params_, fallback = params
            params = (params_[0], params_[1], params_[2] or fallback, *params_[3:])
        dims, keepdim, asked, *rest = params
        around = reduced_dims(dims, x.ndim)
        if x.ndim:
            empty(label, x, around, dims is not None and dims != ())
        if check is not None:
            check(x, around, tuple(rest))
        kind, out = result(name, x.dtype, asked)
        shape = reduced_shape(x.shape, around, keepdim)
        outputs = [Meta.contiguous_of(shape, out, x.device)]
        outputs += [outputs[0].with_(dtype=int64 if which == "index" else x.dtype) for which in also]
        return Signature(tuple(outputs), (x,), (Folded(around, kind, tuple(rest)),))

    def samples(make: Make, kind: dtype) -> Iterable[Sample]:
        for more in extra:
            yield (make(3, 4),), (1, False, None, *more)
            yield (make(2, 3, 4),), (0, True, None, *more)
            if global_form:
                yield (make(5, 3),), (None, False, None, *more)

    flags = ("default_dtype",) if default else ()
    kernel = Kernel(name, _host(fold), _flops, cuda=cuda)
    return define(Op(name, rule, kernel, dtypes, samples, flags=flags, derivative=derivative))


def _flops(launch: Launch) -> int:
    source = launch.inputs[0]
    return source.numel if isinstance(source, Meta) else 0


def computing_steps(kind: dtype, source: dtype) -> Steps:
    """The dtypes that `source` is converted through to what a body for `kind` computes in."""
    target = wide(kind)
    if kind is not target and source is not kind:  # dtype=: rounded to it first, as PyTorch converts
        return kind, target
    return () if target is source else (target,)


def to_computing(kind: dtype, source: dtype) -> Callable[[Array], Array]:
    """A function that brings an array of `source` to what a body for `kind` computes in."""
    target = wide(kind)
    steps = computing_steps(kind, source)
    if len(steps) == 2:
        first, second = caster(source, kind), caster(kind, target)

        def through(x: Array) -> Array:
            narrow, out = np.empty(x.shape, kind.numpy), np.empty(x.shape, target.numpy)
            first(narrow, x)
            second(out, narrow)
            return out

        return through
    if not steps:
        return lambda x: x
    cast = caster(source, target)

    def convert(x: Array) -> Array:
        out = np.empty_like(x, dtype=target.numpy)
        cast(out, x)
        return out

    return convert


def _along_memory(fold: Fold, launch: Launch) -> Body | None:
    """A body that folds lines of memory straight into its output, where NumPy computes in these dtypes."""
    how, source, out = launch.params[0], launch.inputs[0], launch.outputs[0]
    ufunc = _UFUNCS.get(fold)
    assert isinstance(source, Meta)
    native = source.dtype is how.kind is out.dtype is wide(out.dtype)
    if ufunc is None or not native or how.dims != (source.ndim - 1,) or source.strides[-1] != 1:
        return None
    if fold in (_greatest, _least) and source.shape[-1] <= SHORT:
        return None
    kept, count = out.ndim == source.ndim, out.dtype.to_real().numpy.type(source.shape[-1])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        ufunc.reduce(inputs[0], axis=-1, keepdims=kept, out=outputs[0])
        if fold is _mean:
            np.divide(outputs[0], count, out=outputs[0])

    return body


def _host(fold: Fold) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        direct = _along_memory(fold, launch)
        if direct is not None:
            return direct
        how: Folded = launch.params[0]
        source = launch.inputs[0]
        assert isinstance(source, Meta)
        convert, group = to_computing(how.kind, source.dtype), grouping(source.shape, how.dims)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            results = fold(group(convert(inputs[0])), *how.extra)
            if results.__class__ is not tuple:
                results = (results,)
            for out, value in zip(outputs, results, strict=False):
                out[...] = value.reshape(out.shape)

        return body

    return host


# -- what real GPUs fold: see `Fold` in driver/api.py ------------------------------------------------------


def _form(
    state: str,
    start: str,
    lift: str,
    join: str,
    *lower: str,
    constants: Callable[[Launch], Sequence[float]] = lambda launch: (),
    first: bool = False,
) -> Form:
    def steps(launch: Launch) -> Steps:
        source = launch.inputs[0]
        assert isinstance(source, Meta)
        return computing_steps(launch.params[0].kind, source.dtype)

    return Form(
        lambda launch: launch.params[0].dims, steps, state, start, lift, join, lower, constants, first
    )


def _extra(launch: Launch) -> tuple[float, ...]:
    return tuple([float(x) for x in launch.params[0].extra])


def _moments(*lower: str) -> Form:
    spread = "spread(moments(s, first, n).m2, n, k0)"
    lowered = [x.format(spread) for x in lower]
    return _form(
        "Deviations<T>", "{}", "deviation(x, first)", "a + b", *lowered, constants=_extra, first=True
    )


_SUM = _form("T", "T{}", "x", "add(a, b)", "s")
_GREATEST = _form("T", "lowest<T>()", "x", "greater(a, b)", "s")
_LEAST = _form("T", "highest<T>()", "x", "lesser(a, b)", "s")
_FIRST_GREATEST = ("Placed<T>", "{lowest<T>(), NOWHERE}", "{x, i}", "first_greatest(a, b)")
_FIRST_LEAST = ("Placed<T>", "{highest<T>(), NOWHERE}", "{x, i}", "first_least(a, b)")


# -- the records -------------------------------------------------------------------


def _summed_back(grad: Any, metas: Any, params: Any) -> Any:
    return restored(grad, metas[0], *params[:2]).expand(metas[0].shape)


def _mean_back(grad: Any, metas: Any, params: Any) -> Any:
    return _summed_back(grad, metas, params) / count(metas[0], params[0])


def _nanmean_back(grad: Any, a: Any, metas: Any, params: Any) -> Any:
    there = ~a.isnan()
    dims = None if params[0] == () else params[0]
    return _summed_back(grad, metas, params) * there / there.sum(dims, True)


def _extreme_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    """Elements that tie share the gradient."""
    where = restored(out, a.meta, *params[:2])
    mask = (a == where) | (a.isnan() & where.isnan())
    return shared_among(mask, restored(grad, a.meta, *params[:2]), params[0])


def _place_back(grad: Any, places: Any, meta: Any, params: Any) -> Any:
    """At the place that the index names."""
    (dim,) = params[0] if isinstance(params[0], tuple) else (params[0],)
    if not meta.ndim:
        return grad.reshape(())
    keep = params[1]
    return by_place(restored(grad, meta, dim, keep), restored(places, meta, dim, keep), meta, dim)


def _prod_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    grad, whole = restored(grad, a.meta, *params[:2]), restored(out, a.meta, *params[:2])
    if not bool((a == 0).any()):
        return grad * conj(whole / a)
    if params[0] is None or params[0] == ():
        rest = _products_of_others(a.reshape(-1), 0).reshape(a.meta.shape)
    else:
        (dim,) = params[0] if isinstance(params[0], tuple) else (params[0],)
        rest = _products_of_others(a, dim) if a.meta.ndim else a * 0 + 1
    return grad * conj(rest)


def _products_of_others(a: Any, dim: int) -> Any:
    """For each element the product of all others along a dimension."""
    size = a.meta.shape[dim]
    ones = a.narrow(dim, 0, 1) * 0 + 1
    before = ones.expand(a.meta.shape).clone()
    after = before.clone()
    if size > 1:
        before.narrow(dim, 1, size - 1).copy_(a.narrow(dim, 0, size - 1).cumprod(dim))
        after.narrow(dim, 0, size - 1).copy_(a.narrow(dim, 1, size - 1).flip([dim]).cumprod(dim).flip([dim]))
    return before * after


def _var_back(grad: Any, a: Any, params: Any) -> Any:
    dims, keepdim, _, correction = params
    listed = None if dims == () else dims
    left = max(count(a.meta, dims) - correction, 0)
    apart = a - (a.mean(listed, True) if a.meta.ndim else a.mean())
    return restored(grad, a.meta, dims, keepdim) * (2.0 / left if left else math.nan) * apart


def _std_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    return _var_back((grad / (out * 2)).masked_fill(out == 0, 0), a, params)


def _norm_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    dims, keepdim, _, p = params
    grad, size = restored(grad, a.meta, dims, keepdim), restored(out, a.meta, dims, keepdim)
    if p == 0:
        return a * 0
    if p == 1:
        return grad * a.sgn()
    if p == 2:
        return grad * (a / size).masked_fill(size == 0, 0)
    if math.isinf(p):
        return a.sgn() * shared_among(a.abs() == size, grad, dims)
    if p < 1:
        slope = a.sgn() * a.abs().pow(p - 1).masked_fill(a == 0, 0)
        return slope * grad * size.pow(1 - p)
    if p < 2:
        return a.sgn() * a.abs().pow(p - 1) * (grad / size.pow(p - 1)).masked_fill(size == 0, 0)
    return a * a.abs().pow(p - 2) * (grad / size.pow(p - 1)).masked_fill(size == 0, 0)


sum_ = reduction("sum", _sum, _summed, cuda=_SUM, derivative=Derivative(_summed_back))
nansum = reduction(
    "nansum",
    _nansum,
    _summed,
    dtypes=REALS,
    cuda=_form("T", "T{}", "is_nan(x) ? T{} : x", "add(a, b)", "s"),
    derivative=Derivative(
        lambda grad, a, metas, params: _summed_back(grad, metas, params).masked_fill(a.isnan(), 0)
    ),
)
mean = reduction(
    "mean",
    _mean,
    _averaged,
    dtypes=FLOATING_OR_COMPLEX,
    cuda=_form("T", "T{}", "x", "a + b", "over(s, n)"),
    derivative=Derivative(
        lambda grad, metas, params: _summed_back(grad, metas, params) / count(metas[0], params[0])
    ),
)
nanmean = reduction(
    "nanmean",
    _nanmean,
    _averaged,
    dtypes=FLOATING_OR_COMPLEX,
    cuda=_form("Counted<T>", "{}", "{is_nan(x) ? T{} : x, !is_nan(x)}", "a + b", "over(s.v, s.n)"),
    derivative=Derivative(_nanmean_back),
)
prod = reduction(
    "prod",
    _product,
    _summed,
    cuda=_form("T", "one<T>()", "x", "mul(a, b)", "s"),
    derivative=Derivative(_prod_back),
)
amax = reduction(
    "amax",
    _greatest,
    _real_kept,
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_GREATEST,
    derivative=Derivative(lambda grad, a, out, params: _extreme_back(grad, a, out, params)),
)
amin = reduction(
    "amin",
    _least,
    _real_kept,
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_LEAST,
    derivative=Derivative(lambda grad, a, out, params: _extreme_back(grad, a, out, params)),
)
aminmax = reduction(
    "aminmax", lambda x: (np.minimum.reduce(x, axis=1), np.maximum.reduce(x, axis=1)), _real_kept,
    also=("input",), empty=_no_identity, dtypes=REALS,
    cuda=_form("Range<T>", "{highest<T>(), lowest<T>()}", "{x, x}",
               "{lesser(a.low, b.low), greater(a.high, b.high)}", "s.low", "s.high"),
    derivative=Derivative(
        lambda grads, a, outs, params: (
            _extreme_back(grads[0], a, outs[0], params) + _extreme_back(grads[1], a, outs[1], params)
        )
    ),
)  # fmt: skip
max_all = reduction(
    "max_all",
    _greatest,
    _real_kept,
    label="max()",
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_GREATEST,
    derivative=Derivative(lambda grad, a, out, params: _extreme_back(grad, a, out, params)),
)
min_all = reduction(
    "min_all",
    _least,
    _real_kept,
    label="min()",
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_LEAST,
    derivative=Derivative(lambda grad, a, out, params: _extreme_back(grad, a, out, params)),
)


def _one_dim(name: str, refused: bool = False) -> Result:
    def result(_: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
        if kind.category == COMPLEX:
            raise RuntimeError(f"{name}(): does not support complex input")
        if refused and kind is bool_:
            raise RuntimeError(f"{name}(): does not support bool input")
        return kind, int64 if refused else kind

    return result


def _with_place(arg: Callable[..., Any]) -> Fold:
    def fold(x: Array) -> tuple[Array, Array]:
        x = _ordered(x)
        at = arg(x, axis=1)
        if x.flags.c_contiguous:
            return x.reshape(-1)[at + np.arange(0, x.size, x.shape[1])], at
        return x[np.arange(len(x)), at], at

    return fold


max_dim = reduction(
    "max",
    _with_place(np.ndarray.argmax),
    _one_dim("max"),
    also=("index",),
    cuda=_form(*_FIRST_GREATEST, "s.v", "s.at"),
    empty=_needs_dim,
    dtypes=REALS,
    global_form=False,
    derivative=Derivative(lambda grad, outs, metas, params: _place_back(grad, outs[1], metas[0], params)),
)
min_dim = reduction(
    "min",
    _with_place(np.ndarray.argmin),
    _one_dim("min"),
    also=("index",),
    cuda=_form(*_FIRST_LEAST, "s.v", "s.at"),
    empty=_needs_dim,
    dtypes=REALS,
    global_form=False,
    derivative=Derivative(lambda grad, outs, metas, params: _place_back(grad, outs[1], metas[0], params)),
)
_NUMBERS = tuple(d for d in REALS if d is not bool_)
argmax = reduction(
    "argmax",
    lambda x: np.argmax(x, axis=1),
    _one_dim("argmax", True),
    cuda=_form(*_FIRST_GREATEST, "s.at"),
    empty=_needs_dim_index,
    dtypes=_NUMBERS,
    derivative=NOT_DIFFERENTIABLE,
)
argmin = reduction(
    "argmin",
    lambda x: np.argmin(x, axis=1),
    _one_dim("argmin", True),
    cuda=_form(*_FIRST_LEAST, "s.at"),
    empty=_needs_dim_index,
    dtypes=_NUMBERS,
    derivative=NOT_DIFFERENTIABLE,
)
all_ = reduction(
    "all",
    lambda x: np.logical_and.reduce(x, axis=1),
    _tested,
    cuda=_form("T", "true", "x", "a && b", "s"),
    derivative=NOT_DIFFERENTIABLE,
)
any_ = reduction(
    "any",
    lambda x: np.logical_or.reduce(x, axis=1),
    _tested,
    cuda=_form("T", "false", "x", "a || b", "s"),
    derivative=NOT_DIFFERENTIABLE,
)
count_nonzero = reduction(
    "count_nonzero",
    lambda x: np.count_nonzero(x, axis=1),
    _counted,
    cuda=_form("i64", "0", "nonzero(x)", "a + b", "s"),
    derivative=NOT_DIFFERENTIABLE,
)
var_mean = reduction(
    "var_mean",
    _var,
    _spread,
    also=("input",),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    cuda=_moments("{}", "mean_of(s, first, n)"),
    derivative=Derivative(
        lambda grads, a, metas, params: _var_back(grads[0], a, params) + _mean_back(grads[1], metas, params)
    ),
)
std_mean = reduction(
    "std_mean",
    _std,
    _spread,
    also=("input",),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    cuda=_moments("sqrt({})", "mean_of(s, first, n)"),
    derivative=Derivative(
        lambda grads, a, outs, metas, params: (
            _std_back(grads[0], a, outs[0], params) + _mean_back(grads[1], metas, params)
        )
    ),
)
var = reduction(
    "var",
    lambda x, correction: _var(x, correction)[0],
    _spread,
    cuda=_moments("{}"),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    derivative=Derivative(_var_back),
)
std = reduction(
    "std",
    lambda x, correction: _std(x, correction)[0],
    _spread,
    cuda=_moments("sqrt({})"),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    derivative=Derivative(_std_back),
)


def _check_norm(x: Meta, dims: tuple[int, ...], extra: tuple[Any, ...]) -> None:
    p = extra[0]
    if p < 0 or (math.isinf(p) and p > 0):
        for dim in dims:
            if x.shape[dim] == 0:
                raise RuntimeError(
                    f"linalg.vector_norm cannot compute the {p} norm on the dimension {dim} because this "
                    "dimension is empty and the operation does not have an identity"
                )


norm = reduction(
    "norm", _norm, _normed, dtypes=FLOATING_OR_COMPLEX, extra=((2.0,), (1.0,), (math.inf,), (3.0,), (0.0,)),
    check=_check_norm,
    cuda=_form("double", "k0 == -INF ? (double)INF : 0.0", "norm_lift(absolute(x), k0)", "norm_join(a, b, k0)",
               "norm_lower(s, k0)", constants=_extra), derivative=Derivative(_norm_back),
)  # fmt: skip
logsumexp = reduction(
    "logsumexp",
    _logsumexp,
    _whole_or_default,
    default=True,
    cuda=_form("LogSum<T>", "{-INF, T{}}", "log_lift(x)", "a + b", "log_lower(s)"),
    derivative=Derivative(
        lambda grad, a, out, params: (
            restored(grad, a.meta, *params[:2]) * conj((a - restored(out, a.meta, *params[:2])).exp())
        )
    ),
)
median = reduction(
    "median",
    _median,
    _ranked,
    also=("index",),
    empty=_needs_dim,
    dtypes=_NUMBERS,
    global_form=False,
    cuda=Routine("median"),
    derivative=Derivative(lambda grad, outs, metas, params: _place_back(grad, outs[1], metas[0], params)),
)
nanmedian = reduction(
    "nanmedian",
    _nanmedian,
    _ranked,
    also=("index",),
    empty=_needs_dim,
    dtypes=_NUMBERS,
    global_form=False,
    cuda=Routine("nanmedian"),
    derivative=Derivative(lambda grad, outs, metas, params: _place_back(grad, outs[1], metas[0], params)),
)
median_all = reduction(
    "median_all",
    _global(_median),
    _ranked,
    dtypes=_NUMBERS,
    cuda=Routine("median_all"),
    derivative=Derivative(lambda grad, a, out, params: _extreme_back(grad, a, out, params)),
)
nanmedian_all = reduction(
    "nanmedian_all",
    _global(_nanmedian),
    _ranked,
    dtypes=_NUMBERS,
    cuda=Routine("nanmedian_all"),
    derivative=Derivative(lambda grad, a, out, params: _extreme_back(grad, a, out, params)),
)
mode = reduction(
    "mode",
    _mode,
    _real_kept,
    also=("index",),
    empty=_needs_dim,
    dtypes=REALS,
    global_form=False,
    cuda=Routine("mode"),
    derivative=Derivative(lambda grad, outs, metas, params: _place_back(grad, outs[1], metas[0], params)),
)


def _check_rank(x: Meta, dims: tuple[int, ...], extra: tuple[Any, ...]) -> None:
    size = math.prod([x.shape[d] for d in dims])
    if not 1 <= extra[0] <= size:
        raise RuntimeError(
            f"kthvalue(): selected number k out of range for dimension {dims[0] if dims else 0}"
        )


kthvalue = reduction(
    "kthvalue", _kthvalue, _ranked, also=("index",), empty=_needs_dim, dtypes=_NUMBERS,
    extra=((1,), (2,)), global_form=False,
    check=_check_rank, cuda=Routine("kthvalue"),
    derivative=Derivative(
        lambda grad, outs, metas, params: _place_back(grad, outs[1], metas[0], params),
    ),
)  # fmt: skip


# -- quantiles: the levels are a second input -----------------------------------------------------------


def _quantile_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, q = operands
    dims, keepdim, *how = params
    assert isinstance(x, Meta) and isinstance(q, Meta)
    if q.device is not x.device:
        raise RuntimeError("quantile() q tensor must be on the same device as the input tensor")
    around = reduced_dims(dims, x.ndim)
    shape = reduced_shape(x.shape, around, keepdim)
    out = Meta.contiguous_of(q.shape + shape, x.dtype, x.device)
    return Signature((out,), (x, q), (around, *how))


def _quantile_host(launch: Launch) -> Body:
    dims, interpolation, skip_nan = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, q = inputs
        outputs[0][...] = _quantile(grouped(x, dims), interpolation, skip_nan, q.reshape(-1)).reshape(
            outputs[0].shape
        )

    return body


def _quantile_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for how in ("linear", "midpoint", "nearest"):
        yield (make(3, 5), make(2, low=0, high=1)), (1, False, how, False)
    yield (make(3, 4, 2), make(3, low=0, high=1)), (1, True, "linear", True)
    yield (make(3, 4), make(low=0, high=1)), (None, True, "linear", False)


quantile = define(
    Op(
        "quantile",
        _quantile_rule,
        Kernel("quantile", _quantile_host, _flops, cuda=Routine("quantile")),
        FLOATING_OR_COMPLEX[2:4],
        _quantile_samples,
        derivative=Derivative(quantile_gradients.by_values, quantile_gradients.by_levels),
    )
)


# -- the trace: a sum over a view that the rule lays out ------------------------------------------------


def _trace_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    if x.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {x.ndim}")
    diagonal = x.with_((min(x.shape),), (x.strides[0] + x.strides[1],))
    kind, out = _summed("trace", x.dtype, None)
    return Signature((Meta.contiguous_of((), out, x.device),), (diagonal,), (Folded((0,), kind, ()),))


def _identity(grad: Any, shape: Any) -> Any:
    ones = grad.new_zeros(shape)
    ones.diagonal().fill_(1)
    return ones


trace = define(
    Op(
        "trace",
        _trace_rule,
        Kernel("trace", _host(_sum), _flops, cuda=_SUM),
        ALL,
        lambda make, kind: [((make(3, 4),), ())],
        derivative=Derivative(lambda grad, metas: grad * _identity(grad, metas[0].shape)),
    )
)
