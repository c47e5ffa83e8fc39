"""Convolutions as matrix products.

# Note [Convolutions as products]
The windows of the input are copied out as columns, some samples at a time so that the copy stays in the cache. One
batched matrix product multiplies the columns by the weight of every group. The transposed convolution is that product
reversed: the columns are computed, then added up where windows overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from flambeau.driver.protocol import Body, Launch
from flambeau.ops.nn.convolution import Geometry, add_bias, factor_conversion
from flambeau.ops.nn.sliding_windows import Array, Ints, pad_axes, spread, windows
from flambeau.ops.pointwise.dtype_promotion import wide

# bytes of columns that are created together, so that they are still in the cache when they are multiplied
CHUNK = 1 << 20


def convolution(launch: Launch) -> Body:
    """Return the body of a convolution or transposed convolution, and its bias."""
    how: Geometry = launch.params[0]
    return _product_body(launch, _add_products if how.transposed else _multiply_windows)


def backward_input(launch: Launch) -> Body:
    """Return the body of the gradient with respect to the input: the other convolution with the same weight."""
    how: Geometry = launch.params[0]
    return _product_body(launch, _multiply_windows if how.transposed else _add_products)


def backward_weight(launch: Launch) -> Body:
    """Return the body of the gradient with respect to the weight: one side's columns times the other side."""
    how, kernel = launch.params[:2]
    convert = factor_conversion(launch)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        broad, narrow = map(convert, inputs if how.transposed else inputs[::-1])
        found = _multiply_sides(narrow, broad, kernel, how)
        np.copyto(outputs[0], found.reshape(outputs[0].shape), casting="unsafe")

    return body


def _product_body(launch: Launch, compute: Callable[[Array, Array, Array, Geometry], None]) -> Body:
    how: Geometry = launch.params[0]
    kind = launch.outputs[0].dtype
    convert, computed = factor_conversion(launch), wide(kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        out = outputs[0] if computed is kind else np.empty(outputs[0].shape, computed.numpy)
        if inputs[0].size and inputs[1].size:
            compute(out, convert(inputs[0]), convert(inputs[1]), how)
        else:
            out[...] = 0
        add_bias(out, inputs[2:], kind)
        if out is not outputs[0]:
            np.copyto(outputs[0], out, casting="unsafe")

    return body


def _chunks(count: int, nbytes: int) -> Iterable[slice]:
    """Return slices of `count` samples of `nbytes` each. A slice has at most CHUNK bytes, or one sample."""
    step = max(1, CHUNK // max(nbytes, 1))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def _multiply_windows(out: Array, x: Array, weight: Array, how: Geometry) -> None:
    kernel, count = weight.shape[2:], out.shape[2:]
    groups, taps, places = how.groups, math.prod(weight.shape[1:]), math.prod(count)
    x = pad_axes(x, [(p, p) for p in how.padding])
    by_group = weight.reshape(groups, weight.shape[0] // groups, taps)
    for part in _chunks(len(x), groups * taps * places * x.itemsize):
        found = windows(x[part], kernel, how.stride, how.dilation, count)
        columns = found.reshape(-1, groups, taps, places)
        if out.flags.c_contiguous:
            np.matmul(by_group, columns, out=out[part].reshape(-1, groups, by_group.shape[1], places))
        else:
            np.copyto(out[part], np.matmul(by_group, columns).reshape(out[part].shape))


def _add_products(out: Array, x: Array, weight: Array, how: Geometry) -> None:
    kernel, count = weight.shape[2:], x.shape[2:]
    groups, places = how.groups, math.prod(count)
    inner, taps = weight.shape[0] // groups, math.prod(weight.shape[1:])
    by_group = weight.reshape(groups, inner, taps).swapaxes(1, 2)
    # with one row there is nothing to sum, so multiply computes the same and is faster
    product = np.multiply if inner == 1 else np.matmul
    pads = tuple(
        [
            (p, max((n - 1) * s + r - p - m, 0))
            for n, s, r, p, m in zip(
                count, how.stride, how.reach(kernel), how.padding, out.shape[2:], strict=True
            )
        ]
    )
    for part in _chunks(len(x), groups * taps * places * x.itemsize):
        columns = product(by_group, x[part].reshape(-1, groups, inner, places))
        columns = columns.reshape(-1, out.shape[1], *kernel, *count)
        np.copyto(out[part], spread(columns, kernel, how.stride, how.dilation, pads, out.shape[2:]))


def _multiply_sides(narrow: Array, broad: Array, kernel: Ints, how: Geometry) -> Array:
    """Return the products of the windows of `broad` (N, C, ...) and `narrow` (N, O, windows ...).

    The result's shape is (groups, O / groups, taps).
    """
    groups, count = how.groups, narrow.shape[2:]
    inner, places = narrow.shape[1] // groups, math.prod(count)
    taps = broad.shape[1] // groups * math.prod(kernel)
    out = np.zeros((groups, inner, taps), narrow.dtype)
    if not (narrow.size and broad.size):
        return out
    ends = zip(broad.shape[2:], count, how.stride, how.padding, how.reach(kernel), strict=True)
    pads = [(p, max((m - 1) * s + r - p - n, 0)) for n, m, s, p, r in ends]
    broad = pad_axes(broad, pads)
    for part in _chunks(len(broad), groups * taps * places * broad.itemsize):
        found = windows(broad[part], kernel, how.stride, how.dilation, count)
        columns = np.moveaxis(found, 0, len(kernel) + 1).reshape(groups, taps, -1)
        side = np.moveaxis(narrow[part].reshape(-1, groups, inner, places), 0, 2).reshape(groups, inner, -1)
        out += np.matmul(side, columns.swapaxes(1, 2))
    return out
