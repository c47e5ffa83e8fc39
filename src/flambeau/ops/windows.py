"""Sliding windows over the trailing (spatial) axes of an array: what convolutions and poolings share.

A loop over the taps of a window is not one over elements: each step works on whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def padded(x: Array, pads: Sequence[tuple[int, int]], value: Any = 0) -> Array:
    """A copy with `value` before and after each trailing axis; `x` itself where nothing is added."""
    if not any(a or b for a, b in pads):
        return x
    lead = x.ndim - len(pads)
    shape = x.shape[:lead] + tuple([n + a + b for n, (a, b) in zip(x.shape[lead:], pads, strict=True)])
    out = np.full(shape, value, x.dtype) if value else np.zeros(shape, x.dtype)
    inner: list[Any] = [slice(a, a + n) for n, (a, _) in zip(x.shape[lead:], pads, strict=True)]
    out[(..., *inner)] = x
    return out


def windows(x: Array, kernel: Ints, stride: Ints, dilation: Ints, count: Ints) -> Array:
    """A view of the windows: (..., *kernel, *count) of an array that is padded already."""
    lead = x.ndim - len(kernel)
    steps = x.strides[lead:]
    strides = x.strides[:lead]
    strides += tuple([s * d for s, d in zip(steps, dilation, strict=True)])
    strides += tuple([s * d for s, d in zip(steps, stride, strict=True)])
    return np.lib.stride_tricks.as_strided(x, (*x.shape[:lead], *kernel, *count), strides, writeable=False)


def taps(kernel: Ints, stride: Ints, dilation: Ints, count: Ints) -> Iterator[tuple[Ints, tuple[Any, ...]]]:
    """Each tap of the kernel, and the slices at which the windows meet it in the padded array."""
    for tap in product(*[range(k) for k in kernel]):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        slices = [slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(starts, stride, count, strict=True)]
        yield tap, (..., *slices)


def spread(columns: Array, kernel: Ints, stride: Ints, dilation: Ints, pads: Pairs, size: Ints) -> Array:
    """The reverse of windows: (..., *kernel, *count) added up where they overlap, to (..., *size)."""
    lead, count = columns.ndim - 2 * len(kernel), columns.shape[-len(kernel) :]
    whole = tuple([n + a + b for n, (a, b) in zip(size, pads, strict=True)])
    out = np.zeros((*columns.shape[:lead], *whole), columns.dtype)
    for tap, place in taps(kernel, stride, dilation, count):
        out[place] += columns[(slice(None),) * lead + tap]
    inner: list[Any] = [slice(a, a + n) for n, (a, _) in zip(size, pads, strict=True)]
    return out[(..., *inner)]
