"""Overlap of strided layouts. It is exact, except for layouts that are too large to draw."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flambeau.core.meta import Meta

Extent = Meta | int
"""The layout of an access: a number of contiguous bytes, or the meta of a tensor that has gaps."""

_CANVAS = 1 << 26  # bytes of the largest bitmap: 64 MiB, some 20 ms, once per pair of layouts


def extent_of(meta: Meta) -> Extent:
    return meta.nbytes if meta.contiguous else meta


def span_of(extent: Extent) -> int:
    """Return the number of bytes from the first to the last one that an access touches."""
    return extent if isinstance(extent, int) else extent.span


def is_dense(extent: Extent) -> bool:
    """Return True if an access touches each byte of its span."""
    return isinstance(extent, int) or extent.contiguous or extent.span <= _inner_run(extent)


def covers(outer: int, over: Extent, inner: int, under: Extent) -> bool:
    """Return True if one access certainly touches every byte of another. False means unknown."""
    if outer == inner and over is under:
        return True
    return is_dense(over) and outer <= inner and inner + span_of(under) <= outer + span_of(over)


def overlap(first: int, one: Extent, second: int, other: Extent) -> bool:
    """Return True if two accesses, at two addresses, share a byte.

    The result is exact while the bitmap of both ranges has at most 64 Mi units. For larger ranges,
    overlapping ranges count as overlapping accesses. This is the only case in which interleaved layouts may
    cause a false alarm.
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
    """Return (byte stride, size) of the dimensions with more than one distinct element."""
    if isinstance(extent, int):
        return []
    return [(s, n) for s, n in zip(extent.byte_strides, extent.shape, strict=True) if n > 1 and s]


def _inner_run(extent: Meta) -> int:
    """Return the number of contiguous bytes at each position that the outer strides reach."""
    run = extent.itemsize
    for stride, size in sorted(_strides(extent)):
        if stride > run:
            break
        run = stride * (size - 1) + run
    return run


def _residues_disjoint(first: int, one: Extent, second: int, other: Extent) -> bool:
    """Return True if the bytes of both accesses differ modulo the gcd of their outer strides.

    They are disjoint then. This holds for the columns of one matrix, whatever its size.
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
    """Set the units that an access touches in a bitmap."""
    if isinstance(extent, int):
        canvas[at : at + extent // unit] = 1
        return
    dims = _strides(extent)
    shape = [*[size for _, size in dims], extent.itemsize // unit]
    strides = [*[stride // unit for stride, _ in dims], 1]
    as_strided(canvas[at:], shape, strides)[...] = 1
