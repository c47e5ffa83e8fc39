"""The gradients of reductions. Formulas of Note [Derivatives]: their params begin with the dims and `keepdim`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.dtype import int64
from flambeau.ops.derivative_helpers import by_place, conj, count, restore_dims, shared_among


def summed_back(grad: Any, metas: Any, params: Any) -> Any:
    return restore_dims(grad, metas[0], *params[:2]).expand(metas[0].shape)


def mean_back(grad: Any, metas: Any, params: Any) -> Any:
    return summed_back(grad, metas, params) / count(metas[0], params[0])


def nanmean_back(grad: Any, a: Any, metas: Any, params: Any) -> Any:
    there = ~a.isnan()
    dims = None if params[0] == () else params[0]
    return summed_back(grad, metas, params) * there / there.sum(dims, True)


def extreme_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    """Return the gradient of a maximum or minimum. Tied elements share it; so do NaN elements if the result is NaN."""
    where = restore_dims(out, a.meta, *params[:2])
    mask = (a == where) | (a.isnan() & where.isnan())
    return shared_among(mask, restore_dims(grad, a.meta, *params[:2]), params[0])


def tied_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    """Return the gradient of a maximum or minimum. Tied elements share it; if the result is NaN, all gradients are
    NaN.
    """
    mask = a == restore_dims(out, a.meta, *params[:2])
    return shared_among(mask, restore_dims(grad, a.meta, *params[:2]), params[0])


def place_back(grad: Any, places: Any, meta: Any, params: Any) -> Any:
    """Return zeros with each gradient at the index of the element that the reduction selected."""
    (dim,) = params[0] if isinstance(params[0], tuple) else (params[0],)
    if not meta.ndim:
        return grad.reshape(())
    keep = params[1]
    return by_place(restore_dims(grad, meta, dim, keep), restore_dims(places, meta, dim, keep), meta, dim)


def prod_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    grad, whole = restore_dims(grad, a.meta, *params[:2]), restore_dims(out, a.meta, *params[:2])
    if not bool((a == 0).any()):
        return grad * conj(whole / a)
    if params[0] is None or params[0] == ():
        rest = _products_of_others(a.reshape(-1), 0).reshape(a.meta.shape)
    else:
        (dim,) = params[0] if isinstance(params[0], tuple) else (params[0],)
        rest = _products_of_others(a, dim) if a.meta.ndim else a * 0 + 1
    return grad * conj(rest)


def _products_of_others(a: Any, dim: int) -> Any:
    """Return, for each element, the product of all other elements along a dimension."""
    size = a.meta.shape[dim]
    ones = a.narrow(dim, 0, 1) * 0 + 1
    before = ones.expand(a.meta.shape).clone()
    after = before.clone()
    if size > 1:
        before.narrow(dim, 1, size - 1).copy_(a.narrow(dim, 0, size - 1).cumprod(dim))
        after.narrow(dim, 0, size - 1).copy_(a.narrow(dim, 1, size - 1).flip([dim]).cumprod(dim).flip([dim]))
    return before * after


def var_back(grad: Any, a: Any, params: Any) -> Any:
    dims, keepdim, _, correction = params
    listed = None if dims == () else dims
    left = max(count(a.meta, dims) - correction, 0)
    apart = a - (a.mean(listed, True) if a.meta.ndim else a.mean())
    return restore_dims(grad, a.meta, dims, keepdim) * (2.0 / left if left else math.nan) * apart


def std_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    return var_back((grad / (out * 2)).masked_fill_(out == 0, 0), a, params)


def norm_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    dims, keepdim, _, p = params
    grad, size = restore_dims(grad, a.meta, dims, keepdim), restore_dims(out, a.meta, dims, keepdim)
    if p == 0:
        return a.new_zeros(a.meta.shape)
    if p == 1:
        return grad * a.sgn()
    if p == 2:
        return grad * (a / size).masked_fill_(size == 0, 0)
    if math.isinf(p):
        return a.sgn() * shared_among(a.abs() == size, grad, dims)
    if p < 1:
        slope = a.sgn() * a.abs().pow(p - 1).masked_fill_(a == 0, 0)
        return slope * grad * size.pow(1 - p)
    if p < 2:
        return a.sgn() * a.abs().pow(p - 1) * (grad / size.pow(p - 1)).masked_fill_(size == 0, 0)
    return a * a.abs().pow(p - 2) * (grad / size.pow(p - 1)).masked_fill_(size == 0, 0)


def logsumexp_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    out = restore_dims(out, a.meta, *params[:2])
    return restore_dims(grad, a.meta, *params[:2]) * conj((a - out).exp())


# -- quantiles, with respect to the values that each lies between, and to the levels -------------------
# The formulas sort again, which costs less than saving the order.


class _QuantileRanks:
    """The positions of quantiles in sorted rows (..., n): for each row and level two indices, and the weight of the
    upper one.
    """

    def __init__(self, x: Any, levels: Any, params: tuple[Any, ...]) -> None:
        dim, _, how, skip_nan = params
        self.dim = dim
        self.rows = x.reshape(-1) if dim is None else x.movedim(dim, -1)
        self.rows = self.rows.reshape(1) if self.rows.ndim == 0 else self.rows
        self.ordered, self.order = self.rows.sort(-1)
        nan = self.rows != self.rows
        size = self.rows.shape[-1]
        self.last = (~nan).sum(-1, True).clamp(min=1) - 1 if skip_nan else nan.sum(-1, True) * 0 + size - 1
        rank = levels.reshape(-1) * self.last.to(x.dtype)
        if not skip_nan:  # a row with a NaN is one: the last in order
            rank = rank.where(~nan.any(-1, True), rank.new_zeros(()) + size - 1)
        rank = rank.round() if how == "nearest" else rank
        low, high = rank.floor(), rank.ceil()
        self.low = (high if how == "higher" else low).to(int64)
        self.high = (low if how == "lower" else high).to(int64)
        share = rank - low if how in ("linear", "nearest") else rank * 0 + 0.5
        self.share = share * (self.low != self.high)

    def of(self, grad: Any, levels: Any) -> Any:
        """Return the gradient of the quantiles in the shape (..., levels)."""
        return grad.reshape((levels.numel(), *self.rows.shape[:-1])).movedim(0, -1)


def quantile_back(grad: Any, a: Any, b: Any, params: tuple[Any, ...]) -> Any:
    ranks = _QuantileRanks(a, b, params)
    given = ranks.of(grad, b)
    low, high = (ranks.order.gather(-1, places) for places in (ranks.low, ranks.high))
    found = grad.new_zeros(ranks.rows.shape)
    found = found.scatter_add(-1, low, given * (1 - ranks.share)).scatter_add(-1, high, given * ranks.share)
    return found.reshape(a.shape) if ranks.dim is None or not a.ndim else found.movedim(-1, ranks.dim)


def quantile_levels_back(grad: Any, a: Any, b: Any, params: tuple[Any, ...]) -> Any:
    ranks = _QuantileRanks(a, b, params)
    if params[2] != "linear":
        return None
    low, high = (ranks.ordered.gather(-1, places) for places in (ranks.low, ranks.high))
    apart = (high - low).masked_fill(ranks.low == ranks.high, 0)  # not NaN minus NaN
    found = ranks.of(grad, b) * apart * ranks.last
    return found.reshape(found.numel() // max(b.numel(), 1), b.numel()).sum(0).reshape(b.shape)
