"""Processing of large arrays by blocks that stay in a core's cache, so that temporaries need no main memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 1 << 15  # elements
SHORT = 32  # the number of elements of a row, and of rows, that count as short
TILE = 128  # the side of a square whose columns, read and written, stay in the cache


def in_blocks(compute: Callable[[Array], Array], x: Array, out: Array | None = None) -> Array:
    """Return `compute(x)` of an elementwise function, computed block by block, in `out` if it is not None."""
    if x.size <= BLOCK:
        result = compute(x.reshape(-1)).reshape(x.shape)
        if out is not None:
            out[...] = result
        return result
    flat = np.ascontiguousarray(x).reshape(-1)
    direct = out is not None and out.flags.c_contiguous
    whole = out if out is not None and direct else np.empty(x.shape, x.dtype)
    target = whole.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        target[start : start + BLOCK] = compute(flat[start : start + BLOCK])
    if out is not None and not direct:
        out[...] = whole
    return whole


def row_blocks(rows: Array) -> Iterator[slice]:
    """Return ranges of a matrix's rows, one block each."""
    count = max(1, BLOCK // max(1, rows.shape[-1]))
    return (slice(start, start + count) for start in range(0, len(rows), count))


def transposes(out: Array, x: Array) -> bool:
    """Return True if `out[...] = x` would access one of the operands in steps that are too large for the cache."""
    if x.ndim < 2 or x.size < BLOCK or x.dtype != out.dtype:
        return False
    along = x.strides.index(x.itemsize) if x.itemsize in x.strides else -1
    return (
        0 <= along < x.ndim - 1
        and out.strides[-1] == out.itemsize
        and min(x.shape[along], x.shape[-1]) > TILE
    )


def copy_tiles(out: Array, x: Array) -> None:
    """Copy `x` to `out`, for which `transposes` is True, square by square."""
    along = x.strides.index(x.itemsize)
    before, between = (slice(None),) * along, (slice(None),) * (x.ndim - 2 - along)
    for i in range(0, x.shape[along], TILE):
        for j in range(0, x.shape[-1], TILE):
            tile = (*before, slice(i, i + TILE), *between, slice(j, j + TILE))
            out[tile] = x[tile]


_WORDS: dict[int, Any] = {4: np.int32, 8: np.int64}


def selectable(condition: Array, a: Any, b: Any, out: Array) -> bool:
    """Return True if `select` supports these operands and is faster than `np.where`."""
    if out.size < BLOCK // 2 or out.itemsize not in _WORDS or not condition.ndim:
        return False
    return all(not x.ndim or (x.size == out.size and x.flags.c_contiguous) for x in (condition, a, b, out))


def select(condition: Array, a: Any, b: Any, out: Array) -> None:
    """Compute `np.where` with bit masks, one block at a time, which avoids mispredicted branches."""
    word = _WORDS[out.itemsize]
    held, result = condition.reshape(-1).view(np.int8), out.reshape(-1).view(word)
    x, y = (v.reshape(-1).view(word) if v.ndim else np.broadcast_to(v.view(word), out.size) for v in (a, b))
    mask = np.empty(BLOCK, word)
    for start in range(0, out.size, BLOCK):
        part = slice(start, start + BLOCK)
        bits = mask[: result[part].size]
        bits[...] = held[part]
        np.negative(bits, out=bits)
        bits &= x[part] ^ y[part]
        np.bitwise_xor(bits, y[part], out=result[part])


def choose(condition: Any, a: Any, b: Any, out: Array | None = None) -> Any:
    """Return `np.where(condition, a, b)` in the dtype of a and b, in `out` if it is not None."""
    if out is None:
        return np.where(condition, a, b)
    a, b = _number(a), _number(b)
    if selectable(condition, a, b, out):
        select(condition, a, b, out)
    else:
        out[...] = np.where(condition, a, b)
    return out


def _number(x: Any) -> Any:
    """Return the number that an array is expanded from (such as the gradient of a sum); other arrays unchanged."""
    return x if not x.ndim or any(x.strides) or not x.size else x[(0,) * x.ndim]


def fold_rows(ufunc: np.ufunc, rows: Array) -> Array:
    """Reduce each row of a matrix by `np.maximum` or `np.minimum`. Short rows are transposed first, which is faster."""
    if rows.shape[1] > SHORT or len(rows) < SHORT:
        return np.asarray(ufunc.reduce(rows, axis=1))
    return np.asarray(ufunc.reduce(rows.T.copy(), axis=0))


def contiguous(x: Array) -> Array:
    """Return `x` itself if it is contiguous, else a contiguous copy."""
    if x.flags.c_contiguous:
        return x
    out = np.empty(x.shape, x.dtype)
    if transposes(out, x):
        copy_tiles(out, x)
    else:
        out[...] = x
    return out
