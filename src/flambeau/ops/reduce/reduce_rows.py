"""Reductions of the rows of two-dimensional arrays, and the conversion of other arrays to rows.

See Note [How a reduction body computes] in reduction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flambeau.ops.cache_blocks import contiguous, fold_rows

Array = np.ndarray[Any, Any]
Fold = Callable[..., Any]
"""`fold(x, *extra)`: folds the last axis of a two-dimensional array; an array, or a tuple of several."""

RUN = 16  # number of consecutive summands, as in NumPy's own pairwise sums


# -- rows -----------------------------------------------------------------------------------------------


def grouping(shape: Sequence[int], dims: Sequence[int]) -> Callable[[Array], Array]:
    """Return a function that reshapes an array of `shape` to kept and reduced dims; a view if possible."""
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


def group_dims(x: Array, dims: Sequence[int]) -> Array:
    """Return `x` as an array of two axes: the remaining dims, then the reduced dims."""
    return grouping(x.shape, dims)(x)


# -- sums, means, extremes ------------------------------------------------------------------------------


def pairwise_sum(x: Array) -> Array:
    """Return sums along the last axis with an error that grows with the logarithm of its length."""
    if x.dtype.kind not in "fc" or x.shape[1] < RUN or x.strides[1] == x.itemsize:
        return np.asarray(np.add.reduce(x, axis=1))
    if x.strides[0] == x.itemsize and len(x) >= RUN:
        return sum_across(x.T[None])[0]
    return np.asarray(np.add.reduce(contiguous(x), axis=1))


def sum_across(x: Array) -> Array:
    """Return sums along the middle one of three axes. Elements are summed in groups, then the groups."""
    while x.dtype.kind in "fc" and x.shape[1] > RUN:
        whole = x.shape[1] // RUN * RUN
        runs = x[:, :whole].reshape(len(x), -1, RUN, x.shape[2], copy=False)
        rest = [np.add.reduce(x[:, whole:], axis=1, keepdims=True)] if whole < x.shape[1] else []
        x = np.concatenate((np.add.reduce(runs, axis=2), *rest), axis=1)
    return np.asarray(np.add.reduce(x, axis=1))


def total(x: Array) -> Array:
    return pairwise_sum(x)


def product(x: Array) -> Array:
    return np.asarray(np.multiply.reduce(x, axis=1))


def greatest(x: Array) -> Array:
    return fold_rows(np.maximum, x)


def least(x: Array) -> Array:
    return fold_rows(np.minimum, x)


def nansum(x: Array) -> Array:
    return (
        pairwise_sum(np.where(np.isnan(x), x.dtype.type(0), x)) if x.dtype.kind in "fc" else pairwise_sum(x)
    )


def mean(x: Array) -> Array:
    return np.asarray(pairwise_sum(x) / x.real.dtype.type(x.shape[1]))


def nanmean(x: Array) -> Array:
    return np.asarray(nansum(x) / np.count_nonzero(~np.isnan(x), axis=1).astype(x.real.dtype))


# -- spreads, norms -------------------------------------------------------------------------------------


def var(x: Array, correction: float) -> tuple[Array, Array]:
    """Return variance and mean by two passes in double precision, as PyTorch's CPU computes them."""
    x = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)
    mean = pairwise_sum(x) / x.shape[1] if x.shape[1] else np.full(x.shape[0], np.nan, x.dtype)
    away = x - mean[:, None]
    squares = pairwise_sum(away.real**2)
    if x.dtype.kind == "c":
        squares = squares + pairwise_sum(away.imag**2)
    return squares / np.float64(max(x.shape[1] - correction, 0)), mean


def std(x: Array, correction: float) -> tuple[Array, Array]:
    variance, mean = var(x, correction)
    return np.sqrt(variance), mean


def norm(x: Array, p: float) -> Array:
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


def logsumexp(x: Array) -> Array:
    if not x.shape[1]:
        return np.full(x.shape[0], -np.inf)
    top = np.maximum.reduce(x.real, axis=1)
    top = np.where(np.isfinite(top), top, 0).astype(x.real.dtype)
    return np.asarray(np.log(pairwise_sum(np.exp(x - top[:, None]))) + top)


# -- order ----------------------------------------------------------------------------------------------


def _median_place(count: Any) -> Any:
    return np.maximum(count - 1, 0) // 2


def as_bytes_if_bool(x: Array) -> Array:
    """Return booleans as bytes, for which `argmin` is faster."""
    return x.view(np.uint8) if x.dtype == np.bool_ else x


def _nan_or(x: Array, at: Array) -> Array:
    """Return the index of the first NaN of each row; for rows without NaN the index in `at`."""
    if x.dtype.kind != "f":
        return at
    nan = np.isnan(x)
    return np.where(nan.any(axis=1), nan.argmax(axis=1), at)


def _kth(x: Array, rank: Array, skip_nan: bool) -> tuple[Array, Array]:
    """Return the element of rank `rank` in each row, and its index."""
    at = np.argsort(x, axis=1, kind="stable")
    at = np.take_along_axis(at, rank[:, None], 1)[:, 0]
    if not skip_nan:
        at = _nan_or(x, at)
    return np.take_along_axis(x, at[:, None], 1)[:, 0], at


def median(x: Array) -> tuple[Array, Array]:
    return _kth(x, np.full(x.shape[0], _median_place(x.shape[1])), False)


def nanmedian(x: Array) -> tuple[Array, Array]:
    valid = x.shape[1] - (
        np.count_nonzero(np.isnan(x), axis=1) if x.dtype.kind == "f" else np.zeros(x.shape[0], int)
    )
    return _kth(x, _median_place(valid), True)


def whole_median(x: Array, skip_nan: bool = False) -> Array:
    """Return the medians without their indices, for which rows need not be sorted; NaN for empty rows."""
    if not x.shape[1]:
        return np.full(x.shape[0], np.nan)
    found = np.empty(len(x), x.dtype)
    for row, numbers in enumerate(x):
        nans = np.count_nonzero(np.isnan(numbers)) if x.dtype.kind == "f" else 0
        place = int(_median_place(len(numbers) - nans))
        held = nans == len(numbers) or (nans and not skip_nan)
        found[row] = np.nan if held else np.partition(numbers, place)[place]
    return found


def kthvalue(x: Array, k: int) -> tuple[Array, Array]:
    return _kth(x, np.full(x.shape[0], k - 1), True)


def mode(x: Array) -> tuple[Array, Array]:
    """Return the smallest of the most frequent values of each row, and its last index."""
    at = np.argsort(x, axis=1, kind="stable")
    ordered = np.take_along_axis(x, at, 1)
    place = np.arange(x.shape[1])
    starts = np.ones(x.shape, bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)
    best = run.argmax(axis=1)
    found = np.take_along_axis(at, best[:, None], 1)[:, 0]
    return np.take_along_axis(x, found[:, None], 1)[:, 0], found


def quantile(x: Array, interpolation: str, skip_nan: bool, q: Array) -> Array:
    """Return the quantiles of rows, (len(q), rows). A row with a NaN gives NaN unless `skip_nan` is True."""
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
