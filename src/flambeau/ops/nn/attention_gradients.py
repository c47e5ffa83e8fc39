"""The gradient of scaled_dot_product_attention.

Inputs: grad, query, key, value, both outputs of the operator, and optionally a mask. Params: (is_causal, scale, whether
to compute the mask's gradient, the TF32 flag). The weights are recomputed, because they are larger than all saved
tensors. The operator's outputs are redundant but save kernels a pass over the keys. Results have the broadcast batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import bool_, dtype, from_numpy
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.linalg.matmul import product_rate, round_to_tf32, uses_tf32
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device, table
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS
from flambeau.ops.work import product_work, workspaces

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]


def _rule(operands: Sequence[Operand], params: Params) -> Signature:
    grad, q, k, v, attended, logarithms, *masks = operands
    causal, scale, mask_too, tf32 = params
    found = table["scaled_dot_product_attention"].rule([q, k, v, *masks], (causal, scale, tf32))
    out, sums = found.outputs
    for x, like, name in (
        (grad, out, "a gradient"),
        (attended, out, "an output"),
        (logarithms, sums, "logarithms"),
    ):
        assert isinstance(x, Meta)
        if x.shape != like.shape or x.dtype is not like.dtype:
            raise RuntimeError(
                f"scaled_dot_product_attention_backward(): expected {name} of shape {list(like.shape)} and dtype "
                f"{like.dtype}, but got {list(x.shape)} and {x.dtype}"
            )
    where = one_device(operands)
    metas = [x for x in found.inputs if isinstance(x, Meta)]
    made = [Meta.contiguous_of(x.shape, x.dtype, where) for x in (metas if mask_too else metas[:3])]
    return Signature(tuple(made), (grad, *metas[:3], attended, logarithms, *metas[3:]), params)


def _host(launch: Launch) -> Body:
    causal, scale, mask_too = launch.params[:3]
    kind = launch.outputs[0].dtype
    rounded: Callable[[Array], Array] = round_to_tf32 if uses_tf32(launch) else np.asarray
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, q, k, v = (rounded(widen(x)) for x in inputs[:4])
        scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale)
        weights, _ = weights_of(masked_scores(scores, causal, inputs[6:]))
        slopes = np.matmul(grad, v.swapaxes(-1, -2))
        slopes -= np.add.reduce(weights * slopes, axis=-1, keepdims=True)
        slopes *= weights
        turned = rounded(slopes * q.dtype.type(scale))
        np.copyto(outputs[0], np.matmul(turned, k), casting="unsafe")
        np.copyto(outputs[1], np.matmul(turned.swapaxes(-1, -2), q), casting="unsafe")
        np.copyto(outputs[2], np.matmul(rounded(weights).swapaxes(-1, -2), grad), casting="unsafe")
        if mask_too:
            np.copyto(outputs[3], slopes, casting="unsafe")

    return body


def masked_scores(scores: Array, causal: bool, masks: Sequence[Array]) -> Array:
    """Return the scores with masks added, and -inf for keys that causal attention hides from a query."""
    low = scores.dtype.type(-np.inf)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, low)
    for mask in masks:
        scores = np.where(mask, scores, low) if mask.dtype == np.bool_ else scores + mask.astype(scores.dtype)
    return scores


def weights_of(scores: Array) -> tuple[Array, Array]:
    """Return softmax along the last axis and the logarithm of each row's sum of exponentials.

    A row of only -inf gives zeros, and -inf.
    """
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    grown = np.exp(scores - np.where(top == -np.inf, top.dtype.type(0), top))
    total = np.sum(grown, axis=-1, keepdims=True)
    total = np.where(total == 0, total.dtype.type(1), total)
    return grown / total, top + np.log(total)


def _flops(launch: Launch) -> int:
    _, q, k = launch.inputs[:3]
    assert isinstance(q, Meta) and isinstance(k, Meta)
    return 2 * (3 * q.numel + 2 * launch.outputs[2].numel // max(k.shape[-2], 1) * q.shape[-2]) * k.shape[-2]


# -- its derivative ---------------------------------------------------------------------------------------------


def _tensor_weights(q: Any, k: Any, mask: Any, causal: bool, scale: float) -> Any:
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        seen = scores.new_ones(scores.shape[-2:]).tril(0) > 0
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is bool_ else scores + mask
    nothing = (scores == float("-inf")).all(-1, True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)


def _back(grads: Any, a: Any, b: Any, c: Any, d: Any, g: Any, params: Params) -> list[Any]:
    # e and f (outputs of the operator) are determined by the other inputs, so they receive no gradient here.
    # slopes = weights * (seen - sum(weights * seen)), where seen = grad @ value^T; of these, `by_q`, `by_k` and `by_v`
    # are products, so their gradients go back to slopes, weights and factors, and from there to scores.
    causal, scale, mask_too = params[:3]
    grad, q, k, v = a, b, c, d
    by_q, by_k, by_v = grads[:3]
    weights = _tensor_weights(q, k, g, causal, scale)
    seen = grad @ v.transpose(-1, -2)
    level = (weights * seen).sum(-1, True)
    slopes = weights * (seen - level)
    on_slopes = (by_q @ k.transpose(-1, -2) + q @ by_k.transpose(-1, -2)) * scale
    on_slopes = on_slopes + grads[3] if mask_too else on_slopes
    mean = (on_slopes * weights).sum(-1, True)
    on_seen = weights * (on_slopes - mean)
    on_weights = grad @ by_v.transpose(-1, -2) + on_slopes * (seen - level) - seen * mean
    on_scores = weights * (on_weights - (weights * on_weights).sum(-1, True))
    return [
        weights @ by_v + on_seen @ v,
        (slopes @ by_k + on_scores @ k) * scale,
        (slopes.transpose(-1, -2) @ by_q + on_scores.transpose(-1, -2) @ q) * scale,
        on_seen.transpose(-1, -2) @ grad,
        None,
        None,
        on_scores if g is not None and g.dtype is not bool_ else None,
    ]


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    grad, q, k, v = make(2, 1, 2, 2), make(2, 1, 2, 3), make(2, 1, 3, 3), make(2, 1, 3, 2)
    for params, *masks in (
        ((False, 0.5, False),),
        ((True, 0.5, False),),
        ((False, 0.3, True), make(2, 3)),
        ((False, 0.3, False), make(1, 1, 3) > 0),
    ):
        yield (grad, q, k, v, *_outputs([q, k, v, *masks], params[:2]), *masks), params


def _outputs(inputs: Sequence[Array], params: Params) -> list[Array]:
    """Return the attention operator's outputs for these inputs."""
    operator = table["scaled_dot_product_attention"]
    found = operator.rule(
        [Meta.contiguous_of(x.shape, from_numpy(x.dtype), CPU) for x in inputs], (*params, False)
    )
    outputs = [np.zeros(meta.shape, meta.dtype.numpy) for meta in found.outputs]
    operator.kernel.host(Launch(operator.kernel, found.outputs, found.inputs, found.params))(
        outputs, list(inputs)
    )
    return outputs


attention_backward = define(
    Op(
        "scaled_dot_product_attention_backward",
        _rule,
        Kernel(
            "attention_backward",
            _host,
            _flops,
            rate=product_rate,
            cuda=Routine(library="nn.attention_gradients:backward"),
            work=product_work.attention_gradient,
            workspace=workspaces.attention_gradient,
        ),
        FLOATS,
        _samples,
        flags=("matmul_allow_tf32",),
        derivative=Derivative(whole=_back),
    )
)
