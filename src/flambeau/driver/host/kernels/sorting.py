"""The largest elements without a sort of all."""

from __future__ import annotations

import numpy as np

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch, native_code
from flambeau.ops.cache_blocks import contiguous
from flambeau.ops.index.sort import Array, stable_order
from flambeau.ops.index_common import indexes
from flambeau.ops.pointwise.compute_dtype import to_computing


def topk(launch: Launch) -> Body | None:
    """Return the body of topk, which sorts only the selected elements of each row."""
    dim, _, count = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    if not (source.ndim and 0 < 2 * count < source.shape[dim]):
        return None  # nearly all of the row must be sorted anyway
    return _partition(launch)


@indexes
def _partition(launch: Launch) -> Body:
    dim, largest, count = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    convert = to_computing(source.dtype, source.dtype)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        rows = contiguous(np.moveaxis(convert(inputs[0]), dim, -1))
        for out, part in zip(outputs, _top(rows.reshape(-1, rows.shape[-1]), count, largest), strict=True):
            part = part.reshape(*rows.shape[:-1], count)
            np.copyto(out, np.moveaxis(part, -1, dim), casting="unsafe")

    return body


def _top(rows: Array, count: int, largest: bool) -> tuple[Array, Array]:
    """Return the first `count` elements of each row's stable order, and their indices."""
    native = native_code()
    selected = None if native is None else native.select_top(rows, count, largest)
    if selected is not None:
        return selected
    places = _choose(rows, count, largest)
    found = np.take_along_axis(rows, places, -1)
    order = stable_order(found, -1, largest)
    return np.take_along_axis(found, order, -1), np.take_along_axis(places, order, -1)


def _choose(rows: Array, count: int, largest: bool) -> Array:
    """Return the indices of the `count` largest (or smallest) elements of each row, in ascending order.

    Of equal elements it chooses the first ones.
    """
    if rows.dtype.kind == "f" and np.isnan(rows).any():
        return np.sort(stable_order(rows, 1, largest)[:, :count], axis=1)
    last = rows.shape[1] - count if largest else count - 1
    bound = np.partition(rows, last, axis=1)[:, last, None]
    taken = rows >= bound if largest else rows <= bound
    if np.count_nonzero(taken) > len(rows) * count:  # more elements equal the bound than are needed
        equal = rows == bound
        room = count - np.count_nonzero(taken & ~equal, axis=1)
        taken &= ~equal | (np.cumsum(equal, axis=1) <= room[:, None])
    return np.nonzero(taken)[1].reshape(len(rows), count)
