"""`fold_at`: a faster `ufunc.at` for indices whose structure allows it.

# Note [How repeated places add up]
Very long rows are added one by one, in place. Long rows are added in rounds: the first occurrence of every target, then
the second ones, and so on; when few of many targets are left, each is reduced separately. Each target therefore
receives its values in the order of the indices, and the result is bitwise equal to that of `ufunc.at`. Single elements
and few or short rows go to the flat array, for which NumPy has a fast loop. Native code adds rows one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flambeau.driver.protocol import native_code

Array = np.ndarray[Any, Any]

_WIDE = 16  # elements of a row from which a loop over rows is faster
_LONG = 1024  # elements of a row for which the cost of one call per row is negligible
_FEW = 1 << 14  # number of elements up to which they are added one by one


def fold_at(ufunc: np.ufunc, out: Array, places: tuple[Any, ...], source: Any) -> None:
    """Compute `ufunc.at(out, places, source)`. `places` are full slices and non-negative indices."""
    indexed = [d for d, place in enumerate(places) if not isinstance(place, slice)]
    if len(indexed) == 1 and out.ndim > 1:
        _add_rows(ufunc, out, indexed[0], places, source)
    elif len(indexed) == out.ndim and out.flags.c_contiguous:
        flat = np.ravel_multi_index(places, out.shape)
        given = np.broadcast_to(source, flat.shape)
        ufunc.at(out.reshape(-1), flat.reshape(-1), given.reshape(-1))
    else:
        ufunc.at(out, places, source)


def _add_rows(ufunc: np.ufunc, out: Array, dim: int, places: tuple[Any, ...], source: Any) -> None:
    index: Array = places[dim]
    shape = out.shape[:dim] + index.shape + out.shape[dim + 1 :]
    flat = index.reshape(-1)
    whole = source if np.shape(source) == shape else np.broadcast_to(source, shape)
    whole = whole.reshape(*out.shape[:dim], flat.size, *out.shape[dim + 1 :])
    native = native_code()
    if native is not None and ufunc is np.add and native.add_rows(out, dim, flat, whole):
        return
    width = out.size // max(1, out.shape[dim])
    if width < _WIDE or index.size * width < _FEW:
        if dim or not out.flags.c_contiguous:
            ufunc.at(out, places, source)
            return
        at = flat.reshape(-1, 1) * width + np.arange(width)
        ufunc.at(out.reshape(-1), at.reshape(-1), whole.reshape(-1))
        return
    rows, given = (np.moveaxis(x, dim, 0) if dim else x for x in (out, whole))
    if width >= _LONG:
        for place, more in zip(flat.tolist(), given, strict=True):
            row = rows[place]
            ufunc(row, more, out=row)
        return
    _by_turns(ufunc, rows, flat, given)


def _by_turns(ufunc: np.ufunc, rows: Array, places: Array, given: Array) -> None:
    order = None if (places[1:] >= places[:-1]).all() else np.argsort(places, kind="stable")
    firsts, counts = _runs(places if order is None else places[order])
    here = places[firsts if order is None else order[firsts]]
    # number of indices that occur more often than each count
    active = len(counts) - np.cumsum(np.bincount(counts))
    turns = int(np.argmin(np.arange(len(active)) + active))  # one round takes as long as one index
    sums = rows[here]
    for turn in range(turns):
        at = firsts[: active[turn]] + turn
        part = sums[: len(at)]
        ufunc(part, given[at if order is None else order[at]], out=part)
    for place in range(active[turns]):
        rest = slice(firsts[place] + turns, firsts[place] + counts[place])
        more = given[rest if order is None else order[rest]]
        # copied in this order, so that rows are summed line by line
        lines = np.empty((1 + len(more), *sums.shape[1:]), sums.dtype)
        lines[0], lines[1:] = sums[place], more
        ufunc.reduce(lines, axis=0, dtype=sums.dtype, out=sums[place])
    rows[here] = sums


def _runs(ordered: Array) -> tuple[Array, Array]:
    """Return the starts and lengths of runs of equal values, the longest run first."""
    changes = np.ones(len(ordered), bool)
    changes[1:] = ordered[1:] != ordered[:-1]
    firsts = np.flatnonzero(changes)
    ends = np.append(firsts[1:], len(ordered))
    counts = ends - firsts
    most_first = np.argsort(-counts, kind="stable")
    return firsts[most_first], counts[most_first]
