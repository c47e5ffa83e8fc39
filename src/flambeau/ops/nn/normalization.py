"""Normalization: subtract the mean of each group of elements, divide by its standard deviation, scale and shift.

Each is one kernel. Weight and bias are optional inputs after x; params say which are present. Means and variances are
computed in two passes in float32 (float64 for float64), by pairwise sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.layout import result_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA
from flambeau.ops.derivative_helpers import laid
from flambeau.ops.nn import normalization_gradients as gradients
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, note, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, wide
from flambeau.ops.work import row_work, workspaces

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]


def _flops(launch: Launch) -> int:
    return 8 * launch.outputs[0].numel


def _metas(operands: Sequence[Operand]) -> list[Meta]:
    return [x for x in operands if isinstance(x, Meta)]


def _refuse(x: Meta, name: str) -> None:
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"{name}\" not implemented for '{x.dtype.torch_name}'")


def _same_kind(metas: Sequence[Meta], name: str) -> None:
    """Check that parameters have the dtype of x; x in half precision also allows float32 parameters."""
    x = metas[0]
    for other in metas[1:]:
        if other.dtype is not x.dtype and other.dtype is not wide(x.dtype):
            raise RuntimeError(
                f"expected scalar type {x.dtype.torch_name} but found {other.dtype.torch_name} ({name})"
            )


def _moments(rows: Array) -> tuple[Array, Array]:
    """Return mean and variance of each row as columns."""
    rows = np.ascontiguousarray(rows)
    length = rows.dtype.type(max(rows.shape[1], 1))
    mean = np.add.reduce(rows, axis=1, keepdims=True) / length
    away = rows - mean
    return mean, np.add.reduce(away * away, axis=1, keepdims=True) / length


def _standardize(rows: Array, eps: float) -> Array:
    """Return (x - mean) / sqrt(variance + eps) of each row."""
    mean, variance = _moments(rows)
    return np.asarray((rows - mean) / np.sqrt(variance + rows.dtype.type(eps)))


def _divide_by_root(rows: Array, eps: float) -> Array:
    """Return x / sqrt(mean square + eps) of each row."""
    mean_square = np.mean(rows * rows, axis=1, keepdims=True)
    return np.asarray(rows / np.sqrt(mean_square + rows.dtype.type(eps)))


def scale_and_shift(x: Array, more: Sequence[Array], given: Sequence[bool], shape: Sequence[int]) -> Array:
    """Return x times the weight plus the bias; `more` has those that are present."""
    at = 0
    if given[0]:
        x = x * more[at].astype(x.dtype).reshape(shape)
        at = 1
    if given[1]:
        x = x + more[at].astype(x.dtype).reshape(shape)
    return x


# -- the derivative by given moments; the others are in normalization_gradients.py -------------------------------


def _infer_back(grad: Any, a: Any, b: Any, c: Any, d: Any, params: Any) -> list[Any]:
    eps, given = params
    x, grad, mean, variance, weight = gradients.widen(a, grad, b, c, d if given[0] else None)
    dims, column = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    scale = (variance + eps).rsqrt().reshape(column)
    away = x - mean.reshape(column)
    g = grad if weight is None else grad * weight.reshape(column)
    inner = g * scale
    by_x = (
        laid(inner, x.meta) if x.meta.device.type != "cuda" else inner.contiguous()
    )  # as in PyTorch's kernel for GPUs
    listed = [by_x, -inner.sum(dims), (g * away * scale**3).sum(dims) * -0.5]
    if given[0]:
        listed.append((grad * away * scale).sum(dims))
    return [*listed, grad.sum(dims)]


# -- layer_norm and rms_norm: params (how many trailing dimensions, eps, (weight?, bias?)) -----------------


def _layer_rule(operands: Sequence[Operand], params: Params) -> Signature:
    metas = _metas(operands)
    x, (ndim, _, _) = metas[0], params
    where = one_device(metas, "_native_layer_norm", ("input", "weight", "bias"))
    _refuse(x, "LayerNormKernelImpl")
    _same_kind(metas, "mixed dtype (CPU): all the parameters share one dtype")
    for other in metas[1:]:
        if other.shape != x.shape[x.ndim - ndim :]:
            raise RuntimeError(
                "Expected weight to be of same shape as normalized_shape, but got weight of shape "
                f"{list(other.shape)} and normalized_shape = {list(x.shape[x.ndim - ndim :])}"
            )
    return Signature((Meta.contiguous_of(x.shape, x.dtype, where),), tuple(metas), params)


def _rms_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. PyTorch composes rms_norm of products, which keep the order of x's dimensions."""
    found = _layer_rule(operands, params)
    x = found.inputs[0]
    assert isinstance(x, Meta)
    out = x.with_(strides=result_strides(x.shape, x.strides, broadcast=True))
    return Signature((out,), found.inputs, params)


def _rows_host(normalize: Callable[[Array, float], Array]) -> Callable[[Launch], Body]:
    """Return a reference implementation that treats the last dimensions as a row, with a weight and a bias per
    element.
    """

    def host(launch: Launch) -> Body:
        ndim, eps, given = launch.params
        kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
        widen, first = to_computing(kind, kind), len(shape) - ndim
        rows = (math.prod(shape[:first]), math.prod(shape[first:]))

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            result = normalize(widen(inputs[0]).reshape(rows), eps)
            result = scale_and_shift(result, inputs[1:], given, (1, rows[1]))
            np.copyto(outputs[0], result.reshape(shape), casting="unsafe")

        return body

    return host


def _layer_dims(launch: Launch) -> tuple[int, ...]:
    ndim = launch.outputs[0].ndim
    return tuple(range(ndim - launch.params[0], ndim))


def _layer_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4, 5), make(5), make(5)), (1, 1e-5, (True, True))
    yield (make(3, 4, 5), make(4, 5)), (2, 1e-3, (True, False))
    yield (make(3, 4),), (1, 1e-5, (False, False))


def _rms_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4, 5), make(5)), (1, 1e-5, (True, False))
    yield (make(3, 4),), (2, 1e-3, (False, False))


layer_norm = define(
    Op(
        "layer_norm",
        _layer_rule,
        Kernel(
            "layer_norm",
            _rows_host(_standardize),
            _flops,
            cuda=Routine("nn.normalizing:layer_norm", row_dims=_layer_dims),
            workspace=workspaces.moments_of_rows,
            work=row_work.norm_of_rows,
            fast=HostRoutine("normalization:layer_norm", ulps=16),
        ),
        FLOATS,
        _layer_samples,
        derivative=Derivative(
            whole=gradients.given_to(gradients.layer_norm_backward), name="NativeLayerNormBackward0"
        ),
        autocast=FLOAT32_ON_CUDA,
    )
)
rms_norm = define(
    Op(
        "rms_norm",
        _rms_rule,
        Kernel(
            "rms_norm",
            _rows_host(_divide_by_root),
            _flops,
            cuda=Routine("nn.normalizing:rms_norm", row_dims=_layer_dims),
            workspace=workspaces.moment_of_odd_rows,
            work=row_work.norm_of_rows,
            fast=HostRoutine("normalization:rms_norm", ulps=16),
        ),
        FLOATS,
        _rms_samples,
        derivative=Derivative(whole=gradients.given_to(gradients.rms_norm_backward)),
        autocast=FLOAT32_ON_CUDA,
    )
)


# -- group_norm: x (N, C, ...), params (groups, eps, (weight?, bias?)) -------------------------------------


def _group_rule(operands: Sequence[Operand], params: Params) -> Signature:
    metas = _metas(operands)
    x, groups = metas[0], params[0]
    where = one_device(metas)
    if x.ndim < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {x.ndim}")
    channels = x.shape[1]
    if groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {groups}")
    if channels % groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(x.shape)} and num_groups={groups}"
        )
    for other in metas[1:]:
        if other.shape != (channels,):
            raise RuntimeError(
                "Expected weight to be a vector of size equal to the number of channels in input, but got weight of "
                f"shape {list(other.shape)} and input of shape {list(x.shape)}"
            )
    _refuse(x, "GroupNormKernelImpl")
    _same_kind(metas, "mixed dtype (CPU): all the parameters share one dtype")
    # PyTorch's kernels for GPUs make x contiguous first.
    out = Meta.laid(x.shape, x.dtype, where, x.channels_last and where.type != "cuda")
    return Signature((out,), tuple(metas), params)


def _group_host(launch: Launch) -> Body:
    groups, eps, given = launch.params
    kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
    widen, column = to_computing(kind, kind), (-1, *(1,) * (len(shape) - 2))
    rows = (shape[0] * groups, math.prod(shape[1:]) // groups)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        result = _standardize(widen(inputs[0]).reshape(rows), eps).reshape(shape)
        np.copyto(outputs[0], scale_and_shift(result, inputs[1:], given, column), casting="unsafe")

    return body


def _group_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 4, 5), make(4), make(4)), (2, 1e-5, (True, True))
    yield (make(2, 6, 3, 2),), (3, 1e-3, (False, False))


group_norm = define(
    Op(
        "group_norm",
        _group_rule,
        Kernel(
            "group_norm",
            _group_host,
            _flops,
            cuda=Routine("nn.normalizing:group_norm"),
            workspace=workspaces.moments_of_groups,
            work=row_work.norm_of_groups,
            fast=HostRoutine("normalization:group_norm", ulps=16),
        ),
        FLOATS,
        _group_samples,
        derivative=Derivative(
            whole=gradients.given_to(gradients.group_norm_backward), name="NativeGroupNormBackward0"
        ),
        autocast=FLOAT32_ON_CUDA,
    )
)


# -- batch_norm: x (N, C, ...). By its own moments (also results) or by given ones -------------------------


def _batch_check(metas: Sequence[Meta]) -> None:
    x = metas[0]
    if x.ndim < 2:
        raise RuntimeError(f"batch_norm: expected an input of 2 dimensions or more, got {list(x.shape)}")
    _refuse(x, "batch_norm")
    _same_kind(metas, "Expected parameters of the input's dtype")
    for other in metas[1:]:
        if other.shape != (x.shape[1],):
            raise RuntimeError(
                f"running_mean, running_var, weight and bias should contain {x.shape[1]} elements not {other.numel}"
            )


def _train_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results: the normalized tensor, and each channel's mean, 1 / sqrt(variance + eps) and variance.

    Params: eps, and whether there are a weight and a bias.
    """
    metas = _metas(operands)
    _batch_check(metas)
    x = metas[0]
    out = Meta.laid(x.shape, x.dtype, one_device(metas), x.channels_last)
    moments = Meta.contiguous_of((x.shape[1],), wide(x.dtype), x.device)
    return Signature((out, moments, moments, moments), tuple(metas), params)


def _by_channel(x: Array) -> Array:
    """Return a tensor of shape (N, C, ...) as (C, N ...)."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _train_host(launch: Launch) -> Body:
    eps, given = launch.params
    kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
    widen, column = to_computing(kind, kind), (-1, *(1,) * (len(shape) - 2))

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        mean, variance = _moments(_by_channel(x))
        scale = 1 / np.sqrt(variance + x.dtype.type(eps))
        result = scale_and_shift(
            (x - mean.reshape(column)) * scale.reshape(column), inputs[1:], given, column
        )
        np.copyto(outputs[0], result, casting="unsafe")
        for out, moment in zip(outputs[1:], (mean, scale, variance), strict=True):
            np.copyto(out, moment[:, 0])

    return body


def _infer_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Inputs x, mean, variance, weight, bias; params (eps, (weight?, bias?))."""
    metas = _metas(operands)
    _batch_check(metas)
    x = metas[0]
    out = Meta.laid(x.shape, x.dtype, one_device(metas), x.channels_last)
    return Signature((out,), tuple(metas), params)


def _infer_host(launch: Launch) -> Body:
    eps, given = launch.params
    kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
    widen, column = to_computing(kind, kind), (-1, *(1,) * (len(shape) - 2))

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        mean, variance = (a.astype(x.dtype).reshape(column) for a in inputs[1:3])
        result = (x - mean) * (1 / np.sqrt(variance + x.dtype.type(eps)))
        np.copyto(outputs[0], scale_and_shift(result, inputs[3:], given, column), casting="unsafe")

    return body


def _train_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(4, 3), make(3), make(3)), (1e-5, (True, True))
    yield (make(2, 3, 4, 2), make(3)), (1e-3, (False, True))


def _infer_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(4, 3), make(3), make(3, low=0.5), make(3), make(3)), (1e-5, (True, True))
    yield (make(2, 3, 4), make(3), make(3, low=0.5)), (1e-3, (False, False))


batch_norm_train = define(
    Op(
        "batch_norm_train",
        _train_rule,
        Kernel(
            "batch_norm_train",
            _train_host,
            _flops,
            cuda=Routine("nn.normalizing:batch_norm_train"),
            work=row_work.norm_of_batch,
        ),
        FLOATS,
        _train_samples,
        derivative=Derivative(whole=gradients.of_batch, outputs=1, name="NativeBatchNormBackward0"),
    )
)
note(batch_norm_train, "batch_norm")
batch_norm_infer = define(
    Op(
        "batch_norm_infer",
        _infer_rule,
        Kernel("batch_norm_infer", _infer_host, _flops, cuda=Routine("nn.normalizing:batch_norm_infer")),
        FLOATS,
        _infer_samples,
        derivative=Derivative(whole=_infer_back),
    )
)
note(batch_norm_infer, "batch_norm")
