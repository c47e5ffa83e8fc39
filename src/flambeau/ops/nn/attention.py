"""scaled_dot_product_attention: softmax(query @ key^T * scale + mask) @ value, in one kernel.

Inputs: query (..., L, E), key (..., S, E), value (..., S, Ev), whose batches broadcast, and optionally a mask that
broadcasts to (..., L, S): bool (True takes part) or a tensor that is added. Params: (is_causal, scale, the TF32 flag).
A query without any unmasked key gives zeros. Half precision computes in float32; TF32 rounds the operands of both
products, see Note [TF32].

The second output is the logarithm of each query's sum of exponentials (..., L), -inf for a query without a key. The
gradient reads it instead of computing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import bool_, dtype
from flambeau.core.layout import broadcast_shapes, expand_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import LOWER
from flambeau.ops.linalg.matmul import c_name, product_rate, round_to_tf32, uses_tf32
from flambeau.ops.nn.attention_gradients import attention_backward, masked_scores, weights_of
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, wide
from flambeau.ops.work import product_work, workspaces

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    q, k, v, *masks = operands
    assert isinstance(q, Meta) and isinstance(k, Meta) and isinstance(v, Meta)
    where = one_device(operands)
    if not q.dtype is k.dtype is v.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{q.dtype.torch_name} key.dtype: {k.dtype.torch_name} and value.dtype: {v.dtype.torch_name} instead."
        )
    if q.dtype not in FLOATS:
        raise RuntimeError(f"\"scaled_dot_product_attention\" not implemented for '{q.dtype.torch_name}'")
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{q.ndim}, key.dim: {k.ndim} and value.dim: {v.ndim} instead."
        )
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied: query {list(q.shape)}, key {list(k.shape)}, value "
            f"{list(v.shape)}"
        )
    batch = broadcast_shapes([q.shape[:-2], k.shape[:-2], v.shape[:-2]])
    metas = [_expand(x, (*batch, *x.shape[-2:])) for x in (q, k, v)]
    for mask in masks:
        assert isinstance(mask, Meta)
        metas.append(_expand(_checked_mask(mask, q), (*batch, q.shape[-2], k.shape[-2])))
    out = Meta.contiguous_of((*batch, q.shape[-2], v.shape[-1]), q.dtype, where)
    sums = Meta.contiguous_of((*batch, q.shape[-2]), wide(q.dtype), where)
    return Signature((out, sums), tuple(metas), params)


def _checked_mask(mask: Meta, q: Meta) -> Meta:
    if mask.dtype is not bool_ and mask.dtype is not q.dtype:
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{c_name(mask.dtype)} and  query.dtype: {c_name(q.dtype)} instead."
        )
    return mask


def _expand(x: Meta, shape: tuple[int, ...]) -> Meta:
    if broadcast_shapes([x.shape, shape]) != shape:
        raise RuntimeError(
            f"The expanded size of the tensor {list(shape)} must match the existing size {list(x.shape)}"
        )
    return x.with_(shape, expand_strides(x.shape, x.strides, shape))


def _host(launch: Launch) -> Body:
    causal, scale, _ = launch.params
    convert, rounded = factor_conversions(launch)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        q, k, v = (convert(x) for x in inputs[:3])
        scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale)
        weights, logarithms = weights_of(masked_scores(scores, causal, inputs[3:]))
        np.copyto(outputs[0], np.matmul(rounded(weights), v), casting="unsafe")
        np.copyto(outputs[1], logarithms[..., 0])

    return body


def factor_conversions(launch: Launch) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return the functions that convert inputs and weights to the dtypes in which the products are computed."""
    kind = launch.outputs[0].dtype
    return (round_to_tf32, round_to_tf32) if uses_tf32(launch) else (to_computing(kind, kind), np.asarray)


def _flops(launch: Launch) -> int:
    q, k = launch.inputs[:2]
    assert isinstance(q, Meta) and isinstance(k, Meta)
    return 2 * (q.numel + launch.outputs[0].numel) * k.shape[-2]


def _back(grad: Any, a: Any, b: Any, c: Any, d: Any, outs: Any, params: Any, needs: Any, call: Any) -> Any:
    masks = () if d is None else (d,)
    return call(attention_backward, (grad, a, b, c, *outs, *masks), (*params[:2], d is not None and needs[3]))


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    q, k, v = make(2, 3, 4, 5), make(2, 3, 6, 5), make(2, 3, 6, 2)
    yield (q, k, v), (False, 0.5)
    yield (q, k, v), (True, 0.5)
    yield (q, k, v, make(4, 6)), (False, 0.3)
    yield (q, k, v, make(3, 1, 6) > 0), (False, 0.3)


attention = define(
    Op(
        "scaled_dot_product_attention", _rule,
        Kernel("attention", _host, _flops, rate=product_rate,
            cuda=Routine("nn.attention:attention", "nn.attention_products:attention"),
            work=product_work.attention, workspace=workspaces.attention,
            fast=HostRoutine("attention:attention", ulps=8),
        ), FLOATS, _samples,
        flags=("matmul_allow_tf32",),
        derivative=Derivative(whole=_back, name="ScaledDotProductAttentionBackward0", outputs=1), autocast=LOWER,
    )
)  # fmt: skip
