"""Normalization by rows, some at a time so that they stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from flambeau.driver.protocol import Body, Launch
from flambeau.ops.cache_blocks import Array, contiguous, row_blocks
from flambeau.ops.nn.normalization import scale_and_shift
from flambeau.ops.pointwise.compute_dtype import to_computing

SPAN = 4096  # elements that BLAS sums in one call: in one thread and with many partial sums
Rows = Callable[[Array, Array, float], None]
"""`rows(x, out, eps)`: along the last axis of two matrices."""


def _mean_square(rows: Array) -> Array:
    """Return the mean of the squares of each row, as a column."""
    length = rows.shape[1]
    whole = length - length % SPAN
    spans = rows[:, :whole].reshape(len(rows), whole // SPAN, SPAN)
    sums = np.add.reduce(np.vecdot(spans, spans), axis=1) if whole else rows.dtype.type(0)
    if whole < length:
        rest = rows[:, whole:]
        sums = sums + np.vecdot(rest, rest)
    return np.reshape(sums / rows.dtype.type(length), (-1, 1))


def _standardize(rows: Array, out: Array, eps: float) -> None:
    length = rows.dtype.type(rows.shape[1])
    np.subtract(rows, np.add.reduce(rows, axis=1, keepdims=True) / length, out=out)
    out *= 1 / np.sqrt(_mean_square(out) + rows.dtype.type(eps))


def _divide_by_root(rows: Array, out: Array, eps: float) -> None:
    np.multiply(rows, 1 / np.sqrt(_mean_square(rows) + rows.dtype.type(eps)), out=out)


def _scale_and_shift_in_place(x: Array, factors: Sequence[Array], given: Sequence[bool]) -> None:
    if given[0]:
        x *= factors[0]
    if given[1]:
        x += factors[-1]


def _body(normalize: Rows, launch: Launch) -> Body:
    """Return the body of a normalization of rows (the last dimensions), whose elements each have a weight and a
    bias.
    """
    ndim, eps, given = launch.params
    kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
    widen, length = to_computing(kind, kind), math.prod(shape[len(shape) - ndim :])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        if not outputs[0].size:
            return
        rows = contiguous(widen(inputs[0])).reshape(-1, length)
        direct = rows.dtype == outputs[0].dtype and outputs[0].flags.c_contiguous
        result = outputs[0].reshape(rows.shape) if direct else np.empty_like(rows)
        factors = [more.astype(rows.dtype).reshape(1, length) for more in inputs[1:]]
        for part in row_blocks(rows):
            normalize(rows[part], result[part], eps)
            _scale_and_shift_in_place(result[part], factors, given)
        if not direct:
            np.copyto(outputs[0], result.reshape(shape), casting="unsafe")

    return body


layer_norm = partial(_body, _standardize)
rms_norm = partial(_body, _divide_by_root)


def group_norm(launch: Launch) -> Body:
    """Return the body of group norm, which treats each group of each sample as a row."""
    groups, eps, given = launch.params
    kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        if not outputs[0].size:
            return
        rows = contiguous(widen(inputs[0]).reshape(shape[0] * groups, -1))
        result = np.empty_like(rows)
        for part in row_blocks(rows):
            _standardize(rows[part], result[part], eps)
        result = scale_and_shift(result.reshape(*shape[:2], -1), inputs[1:], given, (-1, 1))
        np.copyto(outputs[0], result.reshape(shape), casting="unsafe")

    return body
