"""Pooling with few passes over the input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch
from flambeau.ops.cache_blocks import Array, contiguous
from flambeau.ops.nn.pooling import flat_places, lowest, places_along
from flambeau.ops.nn.sliding_windows import Windows, bounds_of, pad_axes, taps
from flambeau.ops.pointwise.compute_dtype import to_computing


def max_pool(launch: Launch) -> Body | None:
    """Return the body of max pooling. It stores for each window the number of the largest tap, in few bytes."""
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    if not source.numel:
        return None
    size, count, widen = source.shape[2:], launch.outputs[0].shape[2:], to_computing(kind, kind)
    how: Windows = launch.params[0].reaching(size)
    axes = places_along(how, size, count)
    first = flat_places(
        [np.where(at >= 0, at, n).min(axis=0) for at, n in zip(axes, size, strict=True)], size
    )
    origin = flat_places([at[0] for at in axes], size)
    away = flat_places([np.arange(k) * d for k, d in zip(how.kernel, how.dilation, strict=True)], size)
    offsets = np.concatenate(([0], away.reshape(-1)))  # number of a tap, from 1 -> its offset in memory
    number = np.min_scalar_type(away.size).type

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = contiguous(widen(inputs[0]))
        low = lowest(x.dtype)
        whole = pad_axes(x, how.pads(size, count), low)
        best = np.full(outputs[0].shape, low, x.dtype)
        # number of the largest tap; 0 if no element exceeds the lowest value
        chosen = np.zeros(best.shape, number)
        for i, (_, place) in enumerate(taps(how.kernel, how.stride, how.dilation, count), 1):
            seen = np.ascontiguousarray(whole[place])
            better = (seen > best) | (seen != seen)
            np.maximum(best, seen, out=best)
            np.maximum(chosen, better * number(i), out=chosen)
        none = chosen == 0
        where = np.where(none, first, origin + offsets[chosen])
        samples = np.arange(0, x.size, math.prod(size)).reshape(*x.shape[:2], *(1,) * len(size))
        found = x.reshape(-1).take(where + samples, mode="clip")  # a window may lie outside the input
        np.copyto(outputs[0], np.where(none, x.dtype.type(low), found), casting="unsafe")
        np.copyto(outputs[1], where)

    return body


def adaptive_avg_pool(launch: Launch) -> Body:
    """Return the body of adaptive average pooling, which processes one dimension after the other."""
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    bounds = [bounds_of(n, m) for n, m in zip(source.shape[2:], launch.params[0], strict=True)]
    widen = to_computing(kind, kind)
    parts = [(m, n // max(m, 1)) for n, m in zip(source.shape[2:], launch.params[0], strict=True)]
    even = all(m * k == n for n, (m, k) in zip(source.shape[2:], parts, strict=True))
    split = (*source.shape[:2], *[n for part in parts for n in part])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        if not outputs[0].size:
            return
        if even:  # adjacent windows of one length
            x = np.add.reduce(x.reshape(split), axis=tuple(range(3, len(split), 2)))
            np.copyto(outputs[0], x / x.dtype.type(math.prod([k for _, k in parts])), casting="unsafe")
            return
        for axis, (start, end) in enumerate(bounds):
            x = _average_along(x, 2 + axis, start, end)
        np.copyto(outputs[0], x, casting="unsafe")

    return body


def _average_along(x: Array, axis: int, start: Array, end: Array) -> Array:
    longest = int((end - start).max())
    at = start[:, None] + np.arange(longest)
    within = at < end[:, None]
    found = x.take(np.minimum(at, x.shape[axis] - 1), axis)
    shape = [1] * axis + [*within.shape] + [1] * (x.ndim - axis - 1)
    total = np.add.reduce(np.where(within.reshape(shape), found, x.dtype.type(0)), axis=axis + 1)
    share: Any = (end - start).astype(x.dtype).reshape([-1, *[1] * (x.ndim - axis - 1)])
    return np.asarray(total / share)
