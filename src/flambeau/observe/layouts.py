"""Whether two strided layouts share a byte. Exact, but for layouts too large to draw."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flambeau.core.meta import Meta

Extent = Meta | int
"""The layout of an access: a number of contiguous bytes, or the meta of a tensor that has gaps."""

_CANVAS = 1 << 26  # cells of the largest drawing: 64 MiB, some 20 ms; once per pair of layouts


def extent_of(meta: Meta) -> Extent:
    return meta.nbytes if meta.contiguous else meta


def span_of(extent: Extent) -> int:
    """Bytes from the first to one past the last that an access reaches."""
    return extent if isinstance(extent, int) else extent.span


def is_dense(extent: Extent) -> bool:
    """Whether an access touches each byte of its span."""
    return isinstance(extent, int) or extent.contiguous or extent.span <= _inner_run(extent)


def covers(outer: int, over: Extent, inner: int, under: Extent) -> bool:
    """Whether one access surely touches every byte of another. False where that takes a closer look."""
    if outer == inner and over is under:
        return True
    return is_dense(over) and outer <= inner and inner + span_of(under) <= outer + span_of(over)


def overlap(first: int, one: Extent, second: int, other: Extent) -> bool:
    """Whether two accesses, at two addresses, share a byte.

    Exact while the drawing of what both reach fits 64 Mi units; above that a shared range counts as a
    shared byte (the only case in which interleaved layouts may raise a false alarm).
    """
    begin = max(first, second)
    end = min(first + span_of(one), second + span_of(other))
    if begin >= end:
        return False
    if is_dense(one) and is_dense(other):
        return True
    if _residues_disjoint(first, one, second, other):
        return False
    base = min(first, second)
    unit = gcd(first - base, second - base, _grain(one), _grain(other))
    reach = max(first + span_of(one), second + span_of(other)) - base
    if reach // unit > _CANVAS:
        return True
    canvas = np.zeros(reach // unit + 1, np.uint8)
    draw(canvas, (first - base) // unit, one, unit)
    window = np.zeros_like(canvas)
    draw(window, (second - base) // unit, other, unit)
    return bool(np.any(canvas & window))


def touched_bytes(begin: int, end: int, accesses: list[tuple[int, Extent]]) -> np.ndarray[Any, Any] | None:
    """Return a mask of the bytes in [begin, end) that the accesses touch; None if computing it costs too much."""
    low = min([begin, *[ptr for ptr, _ in accesses]])
    high = max([end, *[ptr + span_of(extent) for ptr, extent in accesses]])
    if high - low > _CANVAS:
        return None
    canvas = np.zeros(high - low + 1, np.uint8)
    for ptr, extent in accesses:
        draw(canvas, ptr - low, extent, 1)
    return canvas[begin - low : end - low]


def _strides(extent: Extent) -> list[tuple[int, int]]:
    """(byte stride, size) of the dimensions that lead to other elements."""
    if isinstance(extent, int):
        return []
    return [(s, n) for s, n in zip(extent.byte_strides, extent.shape, strict=True) if n > 1 and s]


def _inner_run(extent: Meta) -> int:
    """Contiguous bytes at each place that the outer strides lead to."""
    run = extent.itemsize
    for stride, size in sorted(_strides(extent)):
        if stride > run:
            break
        run = stride * (size - 1) + run
    return run


def _residues_disjoint(first: int, one: Extent, second: int, other: Extent) -> bool:
    """A proof that they share nothing: all they touch, modulo the gcd of their outer strides, differs.

    That is the case of the columns of one matrix, whatever its size.
    """
    runs = [extent if isinstance(extent, int) else _inner_run(extent) for extent in (one, other)]
    outer = [s for e, run in zip((one, other), runs, strict=True) for s, _ in _strides(e) if s > run]
    step = gcd(*outer)
    if step == 0:
        return False
    offset = (second - first) % step
    return offset >= runs[0] and offset + runs[1] <= step


def _grain(extent: Extent) -> int:
    if isinstance(extent, int):
        return extent
    return gcd(extent.itemsize, *[stride for stride, _ in _strides(extent)])


def draw(canvas: np.ndarray[Any, Any], at: int, extent: Extent, unit: int) -> None:
    """Mark the units that an access touches."""
    if isinstance(extent, int):
        canvas[at : at + extent // unit] = 1
        return
    dims = _strides(extent)
    shape = [*[size for _, size in dims], extent.itemsize // unit]
    strides = [*[stride // unit for stride, _ in dims], 1]
    as_strided(canvas[at:], shape, strides)[...] = 1
