"""The gradients of quantiles with respect to the two values that each lies between, and to the levels.

They are formulas of Note [Derivatives] and sort again, which costs less than saving the order.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.dtype import int64

Params = tuple[Any, ...]


class _Ranks:
    """The positions of quantiles in sorted rows (..., n): for each row and level two indices, and the weight of the
    upper one.
    """

    def __init__(self, x: Any, levels: Any, params: Params) -> None:
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


def by_values(grad: Any, a: Any, b: Any, params: Params) -> Any:
    ranks = _Ranks(a, b, params)
    given = ranks.of(grad, b)
    low, high = (ranks.order.gather(-1, places) for places in (ranks.low, ranks.high))
    found = grad.new_zeros(ranks.rows.shape)
    found = found.scatter_add(-1, low, given * (1 - ranks.share)).scatter_add(-1, high, given * ranks.share)
    return found.reshape(a.shape) if ranks.dim is None or not a.ndim else found.movedim(-1, ranks.dim)


def by_levels(grad: Any, a: Any, b: Any, params: Params) -> Any:
    ranks = _Ranks(a, b, params)
    if params[2] != "linear":
        return None
    low, high = (ranks.ordered.gather(-1, places) for places in (ranks.low, ranks.high))
    apart = (high - low).masked_fill(ranks.low == ranks.high, 0)  # not NaN minus NaN
    found = ranks.of(grad, b) * apart * ranks.last
    return found.reshape(found.numel() // max(b.numel(), 1), b.numel()).sum(0).reshape(b.shape)
