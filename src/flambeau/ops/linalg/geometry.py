"""Cross products, and distances between the rows of two matrices with their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import bool_, dtype, float32, float64
from flambeau.core.layout import broadcast_shapes, expand_strides
from flambeau.core.meta import Meta
from flambeau.core.typeinfo import finfo
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import WIDEST_ON_CUDA
from flambeau.ops.index_common import indexes
from flambeau.ops.linalg import linalg_gradients as back
from flambeau.ops.linalg.linalg import broadcast, pair_of
from flambeau.ops.linalg.matmul import expand_batch
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import ALL

Array = np.ndarray[Any, Any]


def _cross_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: the dim of size 3."""
    a, b = pair_of(operands)
    (dim,) = params
    if a.shape[dim] != 3 or b.shape[dim] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {a.shape[dim]} and {b.shape[dim]}"
        )
    kind = a.dtype
    if b.dtype is not kind:
        raise RuntimeError(f"expected scalar type {kind.torch_name} but found {b.dtype.torch_name}")
    if kind is bool_:
        raise NotImplementedError("\"cross\" not implemented for 'Bool'")
    shape = broadcast_shapes([a.shape, b.shape])
    a, b = (x.with_(shape, expand_strides(x.shape, x.strides, shape)) for x in (a, b))
    return Signature((Meta.contiguous_of(shape, kind, a.device),), (a, b), params)


def _cross_host(launch: Launch) -> Body:
    (dim,) = launch.params
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        a, b = (np.moveaxis(widen(x), dim, 0) for x in inputs)
        out = np.moveaxis(outputs[0], dim, 0)
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            np.copyto(out[i, ...], a[j] * b[k] - a[k] * b[j], casting="unsafe")

    return body


def _cross_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 3), make(2, 3)), (-1,)
    yield (make(3, 1, 2), make(3, 4, 2)), (0,)


cross = define(
    Op(
        "linalg_cross",
        _cross_rule,
        Kernel(
            "linalg_cross",
            _cross_host,
            lambda launch: 3 * launch.outputs[0].numel,
            cuda=Routine("linalg.geometry:cross"),
        ),
        tuple(d for d in ALL if d is not bool_),
        _cross_samples,
        derivative=Derivative(back.cross_left, back.cross_right),
        autocast=WIDEST_ON_CUDA,
    )
)


def _cdist_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: two batches of rows. Params: p, which the kernel has in the dtype."""
    a, b = pair_of(operands)
    if a.dtype not in (float32, float64):
        where = "cdist" if a.device.type != "cuda" else "cdist_cuda"
        raise NotImplementedError(f"\"{where}\" not implemented for '{a.dtype.torch_name}'")
    a, b = broadcast(a, b)
    order = math.inf if params[0] > finfo(a.dtype).max else params[0]
    return Signature((Meta.contiguous_of((*a.shape[:-1], b.shape[-2]), a.dtype, a.device),), (a, b), (order,))


@indexes
def _cdist_host(launch: Launch) -> Body:
    (p,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        a, b = inputs
        outputs[0][...] = length_of(a[..., :, None, :] - b[..., None, :, :], p, -1)

    return body


def length_of(away: Array, p: float, axis: int) -> Array:
    """Return the p-norm along an axis. The numbers may be overwritten."""
    if p == 2:
        if axis == -1:
            return np.sqrt(np.einsum("...i,...i->...", away, away))
        return np.sqrt(np.sum(np.square(away, out=away), axis=axis))
    np.abs(away, out=away)
    if p == 0:
        return np.count_nonzero(away, axis=axis).astype(away.dtype)
    if math.isinf(p):
        return np.asarray(np.max(away, axis=axis, initial=0))
    if p == 1:
        return np.asarray(np.sum(away, axis=axis))
    return np.asarray(np.sum(away**p, axis=axis) ** away.dtype.type(1 / p))


def _cdist_flops(launch: Launch) -> int:
    *_, a, b = [x for x in launch.inputs[:3] if isinstance(x, Meta)]
    return 3 * a.numel * b.shape[-2]


def _cdist_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for p in (2.0, 1.0, 0.0, math.inf, 1.5):
        yield (make(3, 4), make(5, 4)), (p,)
    yield (make(2, 1, 3, 4), make(3, 2, 4)), (2.0,)


cdist = define(
    Op(
        "_cdist_forward",
        _cdist_rule,
        Kernel(
            "cdist",
            _cdist_host,
            _cdist_flops,
            cuda=Routine("linalg.geometry:cdist"),
            fast=HostRoutine("geometry:cdist", ulps=16),
        ),
        (float32, float64),
        _cdist_samples,
        derivative=Derivative(back.cdist_left, back.cdist_right, name="CdistBackward0"),
    )
)


def _cdist_back_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the first rows' gradient. Operands: gradient of distances, two batches of rows, distances. Params: p."""
    grad, a, b, lengths = operands
    assert isinstance(grad, Meta) and isinstance(lengths, Meta)
    assert isinstance(a, Meta) and isinstance(b, Meta)
    batch = grad.shape[:-2]
    a, b = expand_batch(a, batch), expand_batch(b, batch)
    return Signature((Meta.contiguous_of(a.shape, a.dtype, a.device),), (grad, a, b, lengths), params)


def _cdist_back_host(launch: Launch) -> Body:
    (p,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, a, b, lengths = inputs
        weights, slopes = slopes_of(grad, a[..., :, None, :] - b[..., None, :, :], lengths, p)
        outputs[0][...] = np.sum(weights[..., None] * slopes, axis=-2)

    return body


def slopes_of(grad: Array, away: Array, lengths: Array, p: float) -> tuple[Array, Array]:
    """Return the gradient times the derivative of each distance with respect to each coordinate difference; 0 for equal
    rows.
    """
    if p == 0:
        return grad, np.zeros_like(away)
    if p == 1:
        return grad, np.sign(away)
    if math.isinf(p):
        return grad, np.sign(away) * (np.abs(away) == lengths[..., None])
    weights = np.where(lengths == 0, 0, grad / lengths ** (p - 1))
    if p == 2:
        return weights, away
    return weights, np.where(away == 0, 0, away * np.abs(away) ** (p - 2))


def _cdist_back_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for p in (2.0, 1.0, 0.0, math.inf, 1.5, 3.0):
        yield _with_lengths(make, make(3, 2), make(4, 2), p)
    yield _with_lengths(make, make(2, 1, 2, 3), make(3, 1, 3), 2.0)


def _with_lengths(make: Make, a: Array, b: Array, p: float) -> Sample:
    lengths = length_of(a[..., :, None, :] - b[..., None, :, :], p, -1)
    return (make(*lengths.shape), a, b, lengths.astype(a.dtype)), (p,)


cdist_backward = define(
    Op(
        "_cdist_backward",
        _cdist_back_rule,
        Kernel(
            "cdist_backward",
            _cdist_back_host,
            lambda launch: 2 * _cdist_flops(launch),
            cuda=Routine("linalg.geometry:cdist_backward"),
            fast=HostRoutine("geometry:cdist_backward", ulps=64),
        ),
        (float32, float64),
        _cdist_back_samples,
        derivative=Derivative(whole=back.cdist_backward),
    )
)
