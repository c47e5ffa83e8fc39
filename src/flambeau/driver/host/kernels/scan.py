"""Running sums and products whose wider dtype stays in the cache: the steps of NumPy's scans, and so their bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flambeau.driver.protocol import Body, Launch
from flambeau.ops.cache_blocks import BLOCK, row_blocks
from flambeau.ops.reduce.scan import Array, accumulating, scan_body

LINE = 64  # length of a row from which one NumPy call for each row is faster


def _accumulate(ufunc: np.ufunc, x: Array, axis: int) -> Array:
    kind, last = accumulating(x), axis % x.ndim == x.ndim - 1
    if not last and 0 < x.shape[axis] * LINE <= x.size:
        return _accumulate_lines(ufunc, x, axis, kind)
    if not last or x.dtype == kind or x.size <= BLOCK:
        return ufunc.accumulate(x, axis=axis, dtype=kind)
    return _accumulate_blocks(ufunc, np.ascontiguousarray(x).reshape(-1, x.shape[-1]), kind).reshape(x.shape)


def _accumulate_lines(ufunc: np.ufunc, x: Array, axis: int, kind: Any) -> Array:
    """Return scans along an axis that is not the last one. Each step is one `ufunc` call for all scans.

    NumPy's `accumulate` would scan one column after the other, with strided accesses.
    """
    out = np.empty(x.shape, x.dtype)
    lines, into = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    carried = lines[0].astype(kind)
    into[0] = carried
    for line, place in zip(lines[1:], into[1:], strict=True):
        ufunc(carried, line, out=carried)
        place[...] = carried
    return out


def _accumulate_blocks(ufunc: np.ufunc, rows: Array, kind: Any) -> Array:
    """Return scans of rows that are computed block by block; each block begins with the last block's result."""
    out = np.empty_like(rows)
    for part in row_blocks(rows):
        carried: Any = None
        for start in range(0, rows.shape[1], BLOCK):
            wide = rows[part, start : start + BLOCK].astype(kind)
            if start:
                wide[:, 0] = ufunc(carried, wide[:, 0])
            ufunc.accumulate(wide, axis=1, out=wide)
            carried = wide[:, -1]
            out[part, start : start + BLOCK] = wide
    return out


cumsum = partial(scan_body, partial(_accumulate, np.add))
cumprod = partial(scan_body, partial(_accumulate, np.multiply))


def logcumsumexp(launch: Launch) -> Body | None:
    """Return the body of logcumsumexp for real numbers."""
    if launch.outputs[0].dtype.is_complex:
        return None
    return scan_body(partial(_accumulate, np.logaddexp), launch)
