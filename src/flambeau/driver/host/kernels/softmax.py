"""softmax and log_softmax by rows, some at a time so that they stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch
from flambeau.ops.cache_blocks import Array, contiguous, fold_rows, row_blocks
from flambeau.ops.pointwise.compute_dtype import to_computing

Rows = Callable[[Array, Array], None]
"""`rows(x, out)`: along the last axis of two matrices, that may be one."""


def _exponentiate(x: Array, out: Array) -> None:
    np.subtract(x, fold_rows(np.maximum, x)[:, None], out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, axis=-1, keepdims=True), out=out)


def _subtract_logarithm(x: Array, out: Array) -> None:
    np.subtract(x, fold_rows(np.maximum, x)[:, None], out=out)
    np.subtract(out, np.log(np.add.reduce(np.exp(out), axis=-1, keepdims=True)), out=out)


def _body(rows: Rows, launch: Launch) -> Body:
    axis, kind = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    convert = to_computing(kind, source.dtype)
    length, last = (source.shape[axis], axis == source.ndim - 1) if source.ndim else (1, True)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, out = convert(inputs[0]), outputs[0]
        if not out.size:
            return
        # NumPy sums pairwise only along contiguous memory
        lasting = contiguous(x if last else x.swapaxes(axis, -1))
        direct = last and out.dtype == x.dtype and out.flags.c_contiguous
        result = out if direct else np.empty_like(lasting)
        source, into = lasting.reshape(-1, length), result.reshape(-1, length)
        for part in row_blocks(source):
            rows(source[part], into[part])
        if not direct:
            np.copyto(out, result if last else result.swapaxes(axis, -1), casting="unsafe")

    return body


softmax = partial(_body, _exponentiate)
log_softmax = partial(_body, _subtract_logarithm)
