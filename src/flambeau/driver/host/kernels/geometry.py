"""Distances, some rows at a time: the differences of all pairs of rows are many."""

from __future__ import annotations

import numpy as np

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch
from flambeau.ops.index_common import indexes
from flambeau.ops.linalg.geometry import Array, length_of, slopes_of

BLOCK = 1 << 17  # differences that are computed together, so that they stay in a core's cache
SHORT = 32  # columns up to which sums run across rows instead of along them


@indexes
def cdist(launch: Launch) -> Body:
    """Return the body of the distances of each row of one batch to each row of another."""
    (p,) = launch.params
    first = launch.inputs[0]
    assert isinstance(first, Meta)
    axis = 0 if first.shape[-1] <= SHORT else -1

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        a, b = (np.ascontiguousarray(np.moveaxis(x, -1, axis)) for x in inputs)
        step = max(1, BLOCK // max(1, b.size))
        # distances of rows to themselves are symmetric, so those below the diagonal are copied
        mirrored = _are_one(*inputs)
        for at in range(0, outputs[0].shape[-2], step):
            some, rest = slice(at, at + step), slice(at if mirrored else 0, None)
            if axis == 0:
                away = a[..., some, None] - b[..., None, rest]
            else:
                away = a[..., some, None, :] - b[..., None, rest, :]
            lengths = length_of(away, p, axis)
            outputs[0][..., some, rest] = lengths
            if mirrored:
                outputs[0][..., rest, some] = lengths.mT

    return body


def _are_one(a: Array, b: Array) -> bool:
    """Return True if two arrays view the same elements of memory."""
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape and a.strides == b.strides


def cdist_backward(launch: Launch) -> Body:
    """Return the body of the gradient of distances with respect to the first matrix."""
    (p,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, a, b, lengths = inputs
        step = max(1, BLOCK // max(1, b.size))
        for at in range(0, a.shape[-2], step):
            some = slice(at, at + step)
            away = a[..., some, None, :] - b[..., None, :, :]
            weights, slopes = slopes_of(grad[..., some, :], away, lengths[..., some, :], p)
            outputs[0][..., some, :] = np.matmul(weights[..., None, :], slopes)[..., 0, :]

    return body
