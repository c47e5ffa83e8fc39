"""Attention."""

from __future__ import annotations

import math

from flambeau.core.dtype import bool_
from flambeau.nn.functional.activation import checked, softmax
from flambeau.nn.functional.convolution import linear
from flambeau.nn.functional.dropout import dropout
from flambeau.nn.functional.padding import pad
from flambeau.ops.attention import attention as op
from flambeau.tensor import creation
from flambeau.tensor.call import call
from flambeau.tensor.joining import hstack, vstack
from flambeau.tensor.matmul import baddbmm, bmm, matmul
from flambeau.tensor.tensor import Tensor

Given = Tensor | None


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Given = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query @ key^T * scale + mask) @ value: (..., L, Ev).

    attn_mask broadcasts to (..., L, S): of bool (True takes part), or added. `scale` is 1 / sqrt(E) by default.
    `enable_gqa` repeats the heads (dimension -3) of key and value to as many as the query has.
    Raises RuntimeError: a mask with `is_causal`, dtypes or shapes that do not fit.
    """
    for at, (x, name) in enumerate(((query, "query"), (key, "key"), (value, "value"))):
        checked(x, "scaled_dot_product_attention", name, at + 1)
    if attn_mask is not None and is_causal:
        raise RuntimeError(
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if enable_gqa:
        key, value = _repeated(query, key), _repeated(query, value)
    factor = (
        (1 / math.sqrt(query.shape[-1]) if query.shape[-1] else math.inf) if scale is None else float(scale)
    )
    if dropout_p > 0:
        return _with_dropout(query, key, value, attn_mask, dropout_p, is_causal, factor)
    masks = () if attn_mask is None else (attn_mask,)
    return call(op, (query, key, value, *masks), (is_causal, factor))


def _repeated(query: Tensor, x: Tensor) -> Tensor:
    if query.dim() < 3 or x.dim() < 3 or query.shape[-3] % x.shape[-3]:
        raise RuntimeError("Number of heads in key and value must divide the number of heads in query")
    return x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)


def _with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Given, p: float, causal: bool, scale: float
) -> Tensor:
    """The same in several kernels: dropout comes between the products."""
    scores = matmul(query * scale, key.transpose(-1, -2))
    if causal:
        mask = creation.ones(*scores.shape[-2:], dtype=bool_, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is bool_ else scores + mask
    return matmul(dropout(softmax(scores, -1), p, True), value)


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Given,
    in_proj_bias: Given, bias_k: Given, bias_v: Given, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Given, training: bool = True, key_padding_mask: Given = None,
    need_weights: bool = True, attn_mask: Given = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Given = None, k_proj_weight: Given = None, v_proj_weight: Given = None, static_k: Given = None,
    static_v: Given = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Given]:  # fmt: skip
    """(output, weights or None) of attention with projections and heads.

    query (L, N, E), key and value (S, N, E), or without N. key_padding_mask (N, S) and attn_mask (L, S) or
    (N heads, L, S): of bool (True is left out), or added.
    """
    batched = query.dim() == 3
    if not batched:
        if query.dim() != 2:
            raise AssertionError(
                f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
            )
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, size = query.shape
    _check_heads(size, embed_dim_to_check, num_heads, is_causal, attn_mask)
    padding, added = (_additive(m, query) for m in (key_padding_mask, attn_mask))
    if is_causal and padding is None and not need_weights:
        added = None
    elif is_causal:
        is_causal = False
    weights = in_proj_weight.chunk(3) if in_proj_weight is not None else (None,) * 3
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    more = 0
    if bias_k is not None and bias_v is not None:
        k, v = vstack([k, bias_k.repeat(1, batch, 1)]), vstack([v, bias_v.repeat(1, batch, 1)])
        more = 1
    width = size // num_heads
    q, k, v = (x.reshape(x.shape[0], batch * num_heads, width).transpose(0, 1) for x in (q, k, v))
    k, v = k if static_k is None else static_k, v if static_v is None else static_v
    if add_zero_attn:
        zeros = creation.zeros(batch * num_heads, 1, width, dtype=k.dtype, device=k.device)
        k, v, more = hstack([k, zeros]), hstack([v, zeros]), more + 1
    mask = _merged(added, padding, more, batch, num_heads, k.shape[1])
    if need_weights:
        return _weighed(
            q, k, v, mask, dropout_p if training else 0.0, (length, batch, num_heads), out_proj_weight, out_proj_bias,
            average_attn_weights, batched,
        )  # fmt: skip
    heads = [x.reshape(batch, num_heads, -1, width) for x in (q, k, v)]
    if mask is not None:
        mask = mask.reshape(batch, num_heads, -1, k.shape[1]) if mask.shape[0] != 1 else mask.unsqueeze(0)
    out = scaled_dot_product_attention(*heads, mask, dropout_p if training else 0.0, is_causal)
    out = linear(out.permute(2, 0, 1, 3).reshape(length * batch, size), out_proj_weight, out_proj_bias)
    out = out.reshape(length, batch, -1)
    return (out if batched else out.squeeze(1)), None


def _check_heads(size: int, wanted: int, heads: int, causal: bool, mask: Given) -> None:
    if causal and mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    if size != wanted:
        raise AssertionError(f"was expecting embedding dimension of {wanted}, but got {size}")
    if size % heads:
        raise AssertionError(f"embed_dim {size} not divisible by num_heads {heads}")


def _additive(mask: Given, like: Tensor) -> Given:
    """A mask to be added: -inf where a bool one is True."""
    if mask is None or mask.dtype is not bool_:
        return mask
    return creation.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def _merged(added: Given, padding: Given, more: int, batch: int, heads: int, length: int) -> Given:
    """Both masks as one, (batch * heads or 1, L, S); `more` positions were put behind the keys."""
    if added is not None:
        added = added if added.dim() == 3 else added.unsqueeze(0)
        added = pad(added, (0, more)) if more else added
    if padding is None:
        return added
    padding = pad(padding, (0, more)) if more else padding
    padding = padding.view(batch, 1, 1, length).expand(-1, heads, -1, -1).reshape(batch * heads, 1, length)
    return padding if added is None else added + padding


def _weighed(
    q: Tensor, k: Tensor, v: Tensor, mask: Given, p: float, sizes: tuple[int, int, int], weight: Tensor, bias: Given,
    average: bool, batched: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output and the attention weights, averaged over heads or not."""
    length, batch, heads = sizes
    scaled, turned = q * math.sqrt(1 / q.shape[-1]), k.transpose(-2, -1)
    scores = bmm(scaled, turned) if mask is None else baddbmm(mask, scaled, turned)
    weights = dropout(softmax(scores, -1), p, p > 0)
    out = bmm(weights, v).transpose(0, 1).reshape(length * batch, -1)
    out = linear(out, weight, bias).reshape(length, batch, -1)
    seen = weights.reshape(batch, heads, length, k.shape[1])
    seen = seen.mean(1) if average else seen
    return (out, seen) if batched else (out.squeeze(1), seen.squeeze(0))
