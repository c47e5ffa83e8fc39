"""Attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import bfloat16, bool_, dtype, float16
from flambeau.core.errors import argument_type
from flambeau.core.flags import flags
from flambeau.nn.functional import attention_choice as choice
from flambeau.nn.functional.activation import require_tensor, softmax
from flambeau.nn.functional.convolution import linear
from flambeau.nn.functional.dropout import dropout
from flambeau.nn.functional.padding import pad
from flambeau.ops.nn.attention import attention as op
from flambeau.ops.shape.joining import cat
from flambeau.tensor import autocast
from flambeau.tensor.arguments.options import number
from flambeau.tensor.call import call
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.matmul import matmul
from flambeau.tensor.signatures import by_parser, compares
from flambeau.tensor.tensor import Tensor

Given = Tensor | None


@by_parser
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Given = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return softmax(query @ key^T * scale + mask) @ value: (..., L, Ev).

    attn_mask broadcasts to (..., L, S): of bool (True takes part), or added. `scale` is 1 / sqrt(E) by default.
    `enable_gqa` repeats the heads (dimension -3) of key and value to as many as the query has.

    Raises:
        RuntimeError: For a mask with `is_causal`, dtypes or shapes that do not fit.
    """
    for at, (x, name) in enumerate(((query, "query"), (key, "key"), (value, "value"))):
        require_tensor(x, "scaled_dot_product_attention", name, at + 1)
    dims = [x.dim() for x in (query, key, value)]
    if min(dims) < 2:
        raise RuntimeError(
            f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: {dims[0]} key.dim: "
            f"{dims[1]} and value.dim: {dims[2]} instead."
        )
    if attn_mask is not None and is_causal:
        raise RuntimeError(
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if autocast.threads:
        query, key, value, attn_mask = autocast.cast(op.autocast, query, key, value, attn_mask)
    if enable_gqa:
        key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    factor = (
        (1 / math.sqrt(query.shape[-1]) if query.shape[-1] else math.inf) if scale is None else float(scale)
    )
    by_products = dropout_p > 0
    if choice.is_restricted():
        by_products = choice.choose_backend(query, key, value, attn_mask, dropout_p) == choice.MATH
    if by_products:
        return _by_products(query, key, value, attn_mask, dropout_p, is_causal, factor)
    masks = () if attn_mask is None else (attn_mask,)
    return call(op, (query, key, value, *masks), (is_causal, factor))[0]


def _repeat_heads(query: Tensor, x: Tensor) -> Tensor:
    if query.dim() < 3 or x.dim() < 3 or query.shape[-3] % x.shape[-3]:
        raise RuntimeError("Number of heads in key and value must divide the number of heads in query")
    return x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Given, p: float, causal: bool, scale: float
) -> Tensor:
    """Compute attention in several kernels, with dropout between the products."""
    kind = query.dtype
    if kind in (float16, bfloat16) and not flags.attention_reduced:
        query, key, value = query.float(), key.float(), value.float()
        mask = mask.float() if mask is not None and mask.dtype is kind else mask
    scores = matmul(query * scale, key.transpose(-1, -2))
    if causal:
        mask = creation.ones(*scores.shape[-2:], dtype=bool_, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is bool_ else scores + mask
    weights = softmax(scores, -1)
    if mask is not None:  # a query that may look at nothing gets zeros
        weights = weights.masked_fill((scores == -math.inf).all(-1, True), 0)
    if p > 0:
        weights = dropout(weights, p, True)
    return matmul(weights, value).to(kind)


# -- heads with projections ---------------------------------------------------------------------------------------


@compares(
    "add_zero_attn", "average_attn_weights", "dropout_p", "in_proj_weight", "is_causal", "k_proj_weight",
    "need_weights", "num_heads", "q_proj_weight", "training", "use_separate_proj_weight", "v_proj_weight",
)  # fmt: skip
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Given,
    in_proj_bias: Given, bias_k: Given, bias_v: Given, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Given, training: bool = True, key_padding_mask: Given = None,
    need_weights: bool = True, attn_mask: Given = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Given = None, k_proj_weight: Given = None, v_proj_weight: Given = None, static_k: Given = None,
    static_v: Given = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Given]:  # fmt: skip
    """Return (output, weights or None) of attention with projections and heads.

    Args:
        query: (L, N, E), or (L, E) without a batch.
        key, value: (S, N, E) or (S, E).
        key_padding_mask: (N, S); bool (True excludes a position), or a tensor that is added.
        attn_mask: (L, S) or (N heads, L, S); bool (True excludes a position), or a tensor that is added.

    Raises:
        AssertionError, RuntimeError: If shapes do not match.
    """
    batched = _check_dims(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, size = query.shape
    padding = canonical_mask(key_padding_mask, "key_padding_mask", attn_mask, "attn_mask", query.dtype)
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    is_fused = padding is None and not need_weights
    if is_fused and not isinstance(is_causal, bool):
        raise TypeError(argument_type("scaled_dot_product_attention", "is_causal", 6, "bool", is_causal))
    is_causal = bool(is_causal) and is_fused
    added = None if is_causal else canonical_mask(attn_mask, "attn_mask", None, "", query.dtype)
    _check_heads(query, key, value, embed_dim_to_check, num_heads, use_separate_proj_weight)
    weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        weights = None if in_proj_weight is None else require_tensor(in_proj_weight, "linear", "weight", 2)
    q, k, v = _project((query, key, value), weights, in_proj_bias)
    mask = _per_head(added, (batch, num_heads, length, key.shape[0]))
    k, v, more = _with_biases(k, v, bias_k, bias_v, batch, static_k is None and static_v is None)
    width = size // num_heads
    q, k, v = (_heads(x, num_heads, width) for x in (q, k, v))
    k = k if static_k is None else _static(static_k, "static_k", batch, num_heads, width)
    v = v if static_v is None else _static(static_v, "static_v", batch, num_heads, width)
    if add_zero_attn:
        zeros = creation.zeros(batch, num_heads, 1, width, dtype=k.dtype, device=k.device)
        k, v, more = call(cat, (k, zeros), (2,)), call(cat, (v, zeros), (2,)), more + 1
    mask = _merge_masks(mask, padding, more, batch, k.shape[2])
    p = float(number(dropout_p, "dropout", "p", 2)) if training else 0.0
    attend = _attend_with_weights if need_weights else _attend_fused
    out, seen = attend(q, k, v, mask, p, is_causal)
    out = out.permute(2, 0, 1, 3).reshape(length * batch, size)
    out = linear(out, out_proj_weight, out_proj_bias)
    out = out.view(length, batch, out.shape[1])
    if seen is not None and average_attn_weights:
        seen = seen.mean(1)
    if batched:
        return out, seen
    return out.squeeze(1), None if seen is None else seen.squeeze(0)


def _check_dims(query: Tensor, key: Tensor, value: Tensor, padding: Given, mask: Given, heads: int) -> bool:
    """Return True if the query has a batch dimension. Raises AssertionError if the other arguments do not match it."""
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
        )
    dims = query.dim()
    kind = f"For {'batched' if dims == 3 else 'unbatched'} ({dims}-D) `query`, expected"
    if key.dim() != dims or value.dim() != dims:
        raise AssertionError(
            f"{kind} `key` and `value` to be {dims}-D but found {key.dim()}-D and {value.dim()}-D tensors respectively"
        )
    if padding is not None and padding.dim() != dims - 1:
        raise AssertionError(
            f"{kind} `key_padding_mask` to be `None` or {dims - 1}-D but found {padding.dim()}-D tensor instead"
        )
    if mask is not None and mask.dim() not in (2, 3):
        raise AssertionError(
            f"{kind} `attn_mask` to be `None`, 2-D or 3-D but found {mask.dim()}-D tensor instead"
        )
    wanted = (heads, query.shape[0], key.shape[0])
    if dims == 2 and mask is not None and mask.dim() == 3 and tuple(mask.shape) != wanted:
        raise AssertionError(f"Expected `attn_mask` shape to be {wanted} but got {mask.shape}")
    return dims == 3


def canonical_mask(mask: Given, name: str, other: Given, other_name: str, kind: dtype) -> Given:
    """Return a mask to be added. A bool mask is converted to `kind`, with -inf where it is True.

    Warns if the other mask has another dtype.

    Raises:
        AssertionError: If the mask is neither bool nor floating point.
    """
    if mask is None:
        return None
    if mask.dtype is not bool_ and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if other is not None and other.dtype is not mask.dtype:
        warn_program(
            f"Support for mismatched {name} and {other_name} is deprecated. Use same type for both instead.",
            UserWarning,
        )
    if mask.dtype is not bool_:
        return mask
    return creation.zeros_like(mask, dtype=kind).masked_fill_(mask, -math.inf)


def _check_heads(query: Tensor, key: Tensor, value: Tensor, wanted: int, heads: int, separate: bool) -> None:
    size = query.shape[2]
    if size != wanted:
        raise AssertionError(f"was expecting embedding dimension of {wanted}, but got {size}")
    if size % heads:
        raise AssertionError(f"embed_dim {size} not divisible by num_heads {heads}")
    if separate and key.shape[:2] != value.shape[:2]:
        raise AssertionError(
            f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
        )
    if not separate and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")


def _project(inputs: tuple[Tensor, ...], weights: Any, bias: Given) -> Sequence[Tensor]:
    """Return the projections of query, key and value. If they are one tensor, one product computes all."""
    query, key, value = inputs
    if isinstance(weights, Tensor) and query is key is value:
        parts: Sequence[Tensor] = linear(query, weights, bias).chunk(3, -1)
        return parts
    if weights is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    each = weights.chunk(3) if isinstance(weights, Tensor) else weights
    for weight, name in zip(each, "qkv", strict=True):
        if weight is None:
            raise AssertionError(f"use_separate_proj_weight is True but {name}_proj_weight is None")
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    for b, name in [
        *zip(biases, ("query", "key", "value"), strict=True)
    ]:  # ValueError unless there are three
        if b is not None and not isinstance(weights, Tensor) and tuple(b.shape) != (query.shape[-1],):
            raise AssertionError(f"expecting {name} bias shape of {(query.shape[-1],)}, but got {b.shape}")
    return [linear(x, w, b) for x, w, b in zip(inputs, each, biases, strict=True)]


def _per_head(mask: Given, sizes: tuple[int, int, int, int]) -> Given:
    """Return attn_mask in a shape that broadcasts to (N, heads, L, S). Raises RuntimeError for any other shape."""
    if mask is None:
        return None
    batch, heads, *rest = sizes
    wanted = (*rest,) if mask.dim() == 2 else (batch * heads, *rest)
    if tuple(mask.shape) != wanted:
        raise RuntimeError(
            f"The shape of the {mask.dim()}D attn_mask is {mask.shape}, but should be {wanted}."
        )
    return mask if mask.dim() == 2 else mask.view(sizes)


def _with_biases(
    k: Tensor, v: Tensor, bias_k: Given, bias_v: Given, batch: int, free: bool
) -> tuple[Tensor, Tensor, int]:
    """Append a learned position to keys and values; returns both, and the number of appended positions."""
    if bias_k is None and bias_v is None:
        return k, v, 0
    if bias_k is None or bias_v is None:
        raise AssertionError(
            "bias_k is set but bias_v is None" if bias_v is None else "bias_v is set but bias_k is None"
        )
    if not free:
        raise AssertionError("bias cannot be added to static key.")
    k, v = (call(cat, (x, b.expand(1, batch, -1)), (0,)) for x, b in ((k, bias_k), (v, bias_v)))
    return k, v, 1


def _heads(x: Tensor, heads: int, width: int) -> Tensor:
    """Return (S, N, E) as (N, heads, S, width)."""
    return x.view(*x.shape[:2], heads, width).permute(1, 2, 0, 3)


def _static(x: Tensor, name: str, batch: int, heads: int, width: int) -> Tensor:
    if x.shape[0] != batch * heads:
        raise AssertionError(f"expecting {name}.size(0) of {batch * heads}, but got {x.shape[0]}")
    if x.shape[2] != width:
        raise AssertionError(f"expecting {name}.size(2) of {width}, but got {x.shape[2]}")
    return x.reshape(batch, heads, x.shape[1], width)


def _merge_masks(added: Given, padding: Given, more: int, batch: int, length: int) -> Given:
    """Return both masks as one, extended by `more` positions that were appended to the keys."""
    added, padding = (x if x is None or not more else pad(x, (0, more)) for x in (added, padding))
    if padding is None:
        return added
    for at, wanted in enumerate((batch, length)):
        if padding.shape[at] != wanted:
            raise AssertionError(
                f"Expected key_padded_mask.shape[{at}] to be {wanted}, but got {padding.shape[at]}"
            )
    padding = padding.view(batch, 1, 1, length)
    return padding if added is None else added + padding


def _attend_fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Given, p: float, causal: bool
) -> tuple[Tensor, Given]:
    return scaled_dot_product_attention(q, k, v, mask, p, causal), None


def _attend_with_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: Given, p: float, causal: bool
) -> tuple[Tensor, Given]:
    """Return the output and the weights, in several kernels."""
    scores = matmul(q * math.sqrt(1 / q.shape[-1]), k.transpose(-2, -1))
    weights = softmax(scores if mask is None else scores + mask, -1)
    if p > 0:  # as in PyTorch, which checks no other probability
        weights = dropout(weights, p)
    return matmul(weights, v), weights
