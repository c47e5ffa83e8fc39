"""Sliding windows over the trailing (spatial) axes of an array, for convolutions and pooling.

Code loops over the taps of a window, not over elements, so each step processes whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class Windows(NamedTuple):
    """The positions of a pooling's windows; one int for each spatial dimension."""

    kernel: Ints
    stride: Ints
    padding: Ints
    dilation: Ints
    ceil: bool = False

    def size(self, size: Sequence[int]) -> Ints:
        """Return the spatial size of the result. With `ceil`, a last window may extend beyond the end if it begins
        inside.
        """
        out = []
        for n, k, s, p, d in zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True):
            room = n + 2 * p - d * (k - 1) - 1
            count = (room + (s - 1 if self.ceil else 0)) // s + 1
            out.append(count - 1 if self.ceil and (count - 1) * s >= n + p else count)
        return tuple(out)

    def reaching(self, size: Sequence[int]) -> Windows:
        """Return the windows without the borders of the kernel that lie outside of the input in every window."""
        ends = zip(size, self.kernel, self.padding, self.dilation, strict=True)
        return self._replace(kernel=tuple([min(k, -(-(n + p) // d)) for n, k, p, d in ends]))

    def pads(self, size: Sequence[int], count: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding of the input that makes every window lie inside."""
        ends = zip(size, count, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(p, max(0, (m - 1) * s + d * (k - 1) + 1 - p - n)) for n, m, k, s, p, d in ends]


def pad_axes(x: Array, pads: Sequence[tuple[int, int]], value: Any = 0) -> Array:
    """Return a copy padded with `value` around each trailing axis, or `x` itself if there is no padding."""
    if not any(a or b for a, b in pads):
        return x
    lead = x.ndim - len(pads)
    shape = x.shape[:lead] + tuple([n + a + b for n, (a, b) in zip(x.shape[lead:], pads, strict=True)])
    out = np.full(shape, value, x.dtype) if value else np.zeros(shape, x.dtype)
    inner: list[Any] = [slice(a, a + n) for n, (a, _) in zip(x.shape[lead:], pads, strict=True)]
    out[(..., *inner)] = x
    return out


def windows(x: Array, kernel: Ints, stride: Ints, dilation: Ints, count: Ints) -> Array:
    """Return a view of the windows: (..., *kernel, *count) of an array that is padded already."""
    lead = x.ndim - len(kernel)
    steps = x.strides[lead:]
    strides = x.strides[:lead]
    strides += tuple([s * d for s, d in zip(steps, dilation, strict=True)])
    strides += tuple([s * d for s, d in zip(steps, stride, strict=True)])
    return np.lib.stride_tricks.as_strided(x, (*x.shape[:lead], *kernel, *count), strides, writeable=False)


def taps(kernel: Ints, stride: Ints, dilation: Ints, count: Ints) -> Iterator[tuple[Ints, tuple[Any, ...]]]:
    """Yield each position within the kernel, with the slices of the padded array that it covers over all windows."""
    for tap in product(*[range(k) for k in kernel]):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        slices = [
            slice(a, max(a, a + s * (n - 1) + 1), s) for a, s, n in zip(starts, stride, count, strict=True)
        ]
        yield tap, (..., *slices)


def spread(columns: Array, kernel: Ints, stride: Ints, dilation: Ints, pads: Pairs, size: Ints) -> Array:
    """Return the transpose of `windows`: (..., *kernel, *count) summed where windows overlap, as (..., *size)."""
    lead, count = columns.ndim - 2 * len(kernel), columns.shape[-len(kernel) :]
    whole = tuple([n + a + b for n, (a, b) in zip(size, pads, strict=True)])
    out = np.zeros((*columns.shape[:lead], *whole), columns.dtype)
    for tap, place in taps(kernel, stride, dilation, count):
        out[place] += columns[(slice(None),) * lead + tap]
    inner: list[Any] = [slice(a, a + n) for n, (a, _) in zip(size, pads, strict=True)]
    return out[(..., *inner)]


def divisors(how: Windows, size: Sequence[int], count: Sequence[int], include: bool) -> Array:
    """Return the divisor of each window: its number of elements, including padding if `include` is True."""
    out = np.ones((1,) * len(size))
    for axis, (n, m, k, s, p) in enumerate(
        zip(size, count, how.kernel, how.stride, how.padding, strict=True)
    ):
        start = np.arange(m) * s - p
        end = np.minimum(start + k, n + p)
        if not include:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        out = out * (end - start).reshape([-1 if a == axis else 1 for a in range(len(size))])
    return out


def bounds_of(n: int, count: int) -> tuple[Array, Array]:
    """Return the first and the end index of each of `count` adaptive windows over n elements."""
    at = np.arange(count)
    return at * n // count, -(-(at + 1) * n // count)


def summed_at(out: Array, x: Array, index: Array, axis: int) -> None:
    """Add elements of x along an axis to the elements of `out` at `index`, whose values are sorted."""
    if not index.size:
        return
    starts = np.flatnonzero(np.concatenate(([True], index[1:] != index[:-1])))
    at: tuple[Any, ...] = (slice(None),) * axis
    out[(*at, index[starts])] += x if len(starts) == len(index) else np.add.reduceat(x, starts, axis)
