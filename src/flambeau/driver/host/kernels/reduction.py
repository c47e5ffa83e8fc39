"""Sums, products and extremes as NumPy computes them along memory, without bringing the input to rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from flambeau.core.layout import contiguous_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch
from flambeau.ops.cache_blocks import SHORT
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import wide
from flambeau.ops.reduce.reduce_rows import RUN, Array, sum_across

Across = Callable[[Array], Array]
"""The reduction of the middle of three axes."""


def _body(ufunc: np.ufunc, across: Across, launch: Launch, is_mean: bool = False) -> Body | None:
    direct = _reduce_rows(ufunc, launch, is_mean)
    return _reduce_lines(across, launch) if direct is None else direct


def _reduce_rows(ufunc: np.ufunc, launch: Launch, is_mean: bool) -> Body | None:
    """Return a body that reduces rows of memory directly into its output; None if NumPy cannot."""
    how, source, out = launch.params[0], launch.inputs[0], launch.outputs[0]
    assert isinstance(source, Meta)
    native = source.dtype is how.kind is out.dtype is wide(out.dtype)
    if not native or how.dims != (source.ndim - 1,) or source.strides[-1] != 1:
        return None
    if ufunc in (np.maximum, np.minimum) and source.shape[-1] <= SHORT:
        return None
    kept = out.ndim == source.ndim
    # a small integer dtype cannot represent a row's length, and integers have no mean
    count = out.dtype.to_real().numpy.type(source.shape[-1]) if is_mean else None

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        ufunc.reduce(inputs[0], axis=-1, keepdims=kept, out=outputs[0])
        if count is not None:
            np.divide(outputs[0], count, out=outputs[0])

    return body


def _reduce_lines(across: Across, launch: Launch) -> Body | None:
    """Return a body that combines long rows of memory elementwise."""
    how, source = launch.params[0], launch.inputs[0]
    assert isinstance(source, Meta)
    axes, convert = _lines(source.shape, source.strides, how.dims), to_computing(how.kind, source.dtype)
    if axes is None:
        return None

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        outputs[0][...] = across(convert(inputs[0]).reshape(axes)).reshape(outputs[0].shape)

    return body


def _lines(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the three axes that result from merging a contiguous array's dims, with `dims` in the middle.

    Returns None if the last axis is short.
    """
    if not dims or dims[-1] - dims[0] != len(dims) - 1 or tuple(strides) != contiguous_strides(shape):
        return None
    first, last = dims[0], dims[-1] + 1
    outer, inner = math.prod(shape[:first]), math.prod(shape[last:])
    return (outer, math.prod(shape[first:last]), inner) if inner >= RUN else None


def _mean_across(x: Array) -> Array:
    return np.asarray(sum_across(x) / x.real.dtype.type(x.shape[1]))


def _fold(ufunc: np.ufunc) -> Callable[[Launch], Body | None]:
    return partial(_body, ufunc, lambda x: np.asarray(ufunc.reduce(x, axis=1)))


total = partial(_body, np.add, sum_across)
mean = partial(_body, np.add, _mean_across, is_mean=True)
product, greatest, least = _fold(np.multiply), _fold(np.maximum), _fold(np.minimum)
