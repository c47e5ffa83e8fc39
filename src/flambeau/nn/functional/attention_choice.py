"""Which way of computing attention is taken where `torch.nn.attention.sdpa_kernel` and its like leave out some.

# Note [Ways of attention]
PyTorch has several kernels for one function. Flambeau has two ways: one kernel that never writes the scores to memory
stands for the flash and the memory-efficient kernels, and products with a softmax between them for "math". cuDNN's
attention is not used. What a kernel of PyTorch's does not take, its stand-in refuses, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float16, float32
from flambeau.core.flags import flags

MATH, FLASH, EFFICIENT, CUDNN = range(4)
EVERY = frozenset(range(5))
_NO_VIABLE = (
    "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the math "
    "kernel and the fused kernels."
)
_NAMES = {FLASH: "Flash attention", EFFICIENT: "Memory efficient", CUDNN: "cuDNN attention"}
_HALVES = (float16, bfloat16)
_DEEPEST = 256  # that PyTorch's flash attention takes


def is_restricted() -> bool:
    """Return True if some way is left out, or they are tried in another order than at first."""
    return flags.attention != EVERY or flags.attention_order[0] != FLASH


def chosen(query: Any, key: Any, value: Any, mask: Any, dropout_p: float) -> int:
    """Return the first way that is allowed and takes these.

    Raises:
        RuntimeError: If none does; warnings say why.
    """
    known = (MATH, FLASH) if query.device.type != "cuda" else (MATH, FLASH, EFFICIENT, CUDNN)
    allowed = [way for way in flags.attention_order if way in known and way in flags.attention]
    if not allowed:
        raise RuntimeError(_NO_VIABLE)
    reasons = [(way, why_not(way, query, key, value, mask, dropout_p)) for way in allowed]
    for way, reason in reasons:
        if reason is None:
            return way
    for way, reason in reasons:
        warnings.warn(f"{_NAMES[way]} kernel not used because:", UserWarning, stacklevel=4)
        warnings.warn(str(reason), UserWarning, stacklevel=4)
    raise RuntimeError("No available kernel. Aborting execution.")


def why_not(way: int, query: Any, key: Any, value: Any, mask: Any, dropout_p: float) -> str | None:
    """Return why a way does not take these tensors; None where it does."""
    if way == MATH:
        return None
    if way == CUDNN:
        return "cuDNN attention: Flambeau does not use it."
    tensors = (query, key, value)
    if any(x.dim() != 4 for x in tensors):
        return (
            "All fused kernels requires query, key and value to be 4 dimensional, but got Query dim: "
            f"{query.dim()}, Key dim: {key.dim()}, Value dim: {value.dim()} instead."
        )
    if dropout_p > 0:
        return "Flambeau's fused kernels have no dropout."
    if query.device.type != "cuda":
        return None
    if way == EFFICIENT:
        return _refused_dtypes(tensors, (*_HALVES, float32), "{Half, BFloat16, Float}")
    if mask is not None:
        return "Flash Attention does not support non-null attn_mask."
    depths = [x.shape[-1] for x in tensors]
    if len({*depths}) > 1 or depths[0] > _DEEPEST:
        return (
            "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to "
            f"{_DEEPEST}. Got Query.size(-1): {depths[0]}, Key.size(-1): {depths[1]}, Value.size(-1): {depths[2]} "
            "instead."
        )
    return _refused_dtypes(tensors, _HALVES, "{Half, BFloat16}")


def _refused_dtypes(tensors: Sequence[Any], taken: Sequence[dtype], names: str) -> str | None:
    if all(x.dtype in taken for x in tensors):
        return None
    found = [x.dtype.torch_name for x in tensors]
    return (
        f"Expected query, key and value to all be of dtype: {names}. Got Query dtype: {found[0]}, "
        f"Key dtype: {found[1]}, and Value dtype: {found[2]} instead."
    )
