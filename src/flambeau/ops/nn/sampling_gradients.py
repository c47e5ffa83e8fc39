"""The derivative of grid_sample's gradient, as a formula of Note [Derivatives] over the taps of each position.

grid_sample is the sum over taps of weight * x[tap]. Its gradient uses the weights for x, and their first derivatives by
the position for the grid. The derivative of that gradient uses the first derivatives for x, and the second derivatives
for the grid.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from flambeau.core.dtype import int64

Params = tuple[Any, ...]
Taps = list[tuple[Any, Any, Any, Any]]
"""Along one dimension: the element, its weight, slope and bend, each (N, places ...)."""

_A = -0.75


def gradient(grads: Any, a: Any, b: Any, c: Any, params: Params) -> list[Any]:
    """Return the second derivatives with respect to grad (N, C, places ...), x (N, C, spatial ...) and the grid."""
    on_x, on_grid = grads
    size = b.shape[2:]
    found = [_along(c.select(-1, len(size) - 1 - d), n, *params[:3]) for d, n in enumerate(size)]
    turns = [turn for _, turn in found]
    ways = [on_grid.select(-1, len(size) - 1 - d) * turn for d, turn in enumerate(turns)]
    by_grad, by_x, by_places = a.new_zeros(a.shape), b.new_zeros(b.shape).flatten(2), [0 for _ in size]
    for taps in product(*[table for table, _ in found]):
        flat, inside = _flat([tap[0] for tap in taps], size)
        index = flat.flatten(1).unsqueeze(1).expand((*b.shape[:2], flat[0].numel()))
        read, read_on = (t.flatten(2).gather(2, index).reshape(a.shape) for t in (b, on_x))
        weight = _share(taps, ()) * inside
        slopes = [_share(taps, (d,)) * inside for d in range(len(size))]
        way = sum([slope * way for slope, way in zip(slopes, ways, strict=True)])
        by_grad = by_grad + weight.unsqueeze(1) * read_on + way.unsqueeze(1) * read
        by_x = by_x.scatter_add(2, index, (way.unsqueeze(1) * a).flatten(2))
        met, met_on = ((t * a).sum(1) for t in (read, read_on))
        for d, slope in enumerate(slopes):
            bend = sum([_share(taps, (d, e)) * other for e, other in enumerate(ways)])
            by_places[d] = by_places[d] + slope * met_on + bend * inside * met
    units = [[float(d == e) for e in reversed(range(len(size)))] for d in range(len(size))]
    by_grid = sum(
        [
            (at * turn).unsqueeze(-1) * c.new_tensor(unit)
            for at, turn, unit in zip(by_places, turns, units, strict=True)
        ]
    )
    return [by_grad, by_x.reshape(b.shape), by_grid]


def _share(taps: Any, by: tuple[int, ...]) -> Any:
    """Return the product of a tap's weights over all dimensions. In dimensions `by` the weight's derivative replaces
    it.
    """
    return prod([tap[1 + by.count(d)] for d, tap in enumerate(taps)], start=1)


def _flat(elements: list[Any], size: tuple[int, ...]) -> tuple[Any, Any]:
    """Return indices into the flattened spatial dimensions, and a factor: 1 for positions inside, 0 outside."""
    inside, flat = True, 0
    for at, n in zip(elements, size, strict=True):
        held = (at >= 0) & (at <= n - 1)
        inside = held & inside
        flat = flat * n + at.masked_fill(~held, 0).to(int64)
    return flat, inside.to(elements[0].dtype)  # type: ignore[attr-defined]


# -- along one dimension of n elements --------------------------------------------------------------------------


def _along(grid: Any, n: int, mode: str, padding: str, align: bool) -> tuple[Taps, Any]:
    """Return the taps along a dimension, and the derivative of the positions with respect to the grid."""
    scale = (n - 1 if align else n) / 2
    place = (grid + 1) * scale if align else ((grid + 1) * n - 1) / 2
    if mode == "bicubic":  # each tap is padded separately
        low = place.floor()
        return _cubic(low, place - low, n, padding, align), scale + 0 * low
    at, turn = _pad_position(place, n, padding, align)
    if mode == "nearest":
        return [(at.round(), 1 + 0 * turn, 0 * turn, 0 * turn)], turn * scale
    low = at.floor()
    part, one = at - low, 1 + 0 * turn
    return [(low, 1 - part, -one, 0 * one), (low + 1, part, one, 0 * one)], turn * scale


def _cubic(low: Any, t: Any, n: int, padding: str, align: bool) -> Taps:
    taps = []
    for k in range(4):
        near, forward = k in (1, 2), k < 2
        x = t + (1 - k) if forward else (k - 1) - t
        weight = (
            ((_A + 2) * x - (_A + 3)) * x * x + 1 if near else ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
        )
        slope = (3 * (_A + 2) * x - 2 * (_A + 3)) * x if near else (3 * _A * x - 10 * _A) * x + 8 * _A
        bend = 6 * (_A + 2) * x - 2 * (_A + 3) if near else 6 * _A * x - 10 * _A
        taps.append(
            (_pad_position(low + (k - 1), n, padding, align)[0], weight, slope if forward else -slope, bend)
        )
    return taps


def _pad_position(at: Any, n: int, padding: str, align: bool) -> tuple[Any, Any]:
    """Return a position moved inside, and its derivative: 0 at a clamped end, -1 in a reflected part."""
    turn = at.new_ones(at.shape)
    if padding == "zeros":
        return at, turn
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        if span == 0:
            return at * 0, turn * 0
        away = at - low
        turns, extra = (away.abs() / span).floor(), away.abs().fmod(span)
        odd = turns.fmod(2) != 0
        turn = turn - 2 * (odd != (away < 0)).to(turn.dtype)
        at = (extra + low).where(~odd, span - extra + low)
    turn = turn.masked_fill(~((at > 0) & (at < n - 1)), 0)
    return at.clamp(0, n - 1).masked_fill(at != at, 0), turn
