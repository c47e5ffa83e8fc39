"""The choice of a backend of attention (SDPBackend), where `torch.nn.attention.sdpa_kernel` or flags disable some.

# Note [Attention backends]
PyTorch has four backends for one function. Flambeau has two implementations: a kernel that never writes the scores to
memory serves as the flash and the memory-efficient backend, and two products with a softmax between them as "math".
cuDNN's attention is not used. Inputs that a backend of PyTorch refuses are refused for it here, too.
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
_DEEPEST = 256  # the largest head size that PyTorch's flash attention supports


def is_restricted() -> bool:
    """Return True if a backend is disabled, or if the order in which they are tried was changed."""
    return flags.attention != EVERY or flags.attention_order[0] != FLASH


def choose_backend(query: Any, key: Any, value: Any, mask: Any, dropout_p: float) -> int:
    """Return the first enabled backend that supports these operands: MATH, FLASH, EFFICIENT or CUDNN.

    Raises:
        RuntimeError: If no enabled backend supports them. A warning for each says why.
    """
    known = (MATH, FLASH) if query.device.type != "cuda" else (MATH, FLASH, EFFICIENT, CUDNN)
    allowed = [x for x in flags.attention_order if x in known and x in flags.attention]
    if not allowed:
        raise RuntimeError(_NO_VIABLE)
    reasons = [(backend, why_not(backend, query, key, value, mask, dropout_p)) for backend in allowed]
    for backend, reason in reasons:
        if reason is None:
            return backend
    for backend, reason in reasons:
        warnings.warn(f"{_NAMES[backend]} kernel not used because:", UserWarning, stacklevel=4)
        warnings.warn(str(reason), UserWarning, stacklevel=4)
    raise RuntimeError("No available kernel. Aborting execution.")


def why_not(backend: int, query: Any, key: Any, value: Any, mask: Any, dropout_p: float) -> str | None:
    """Return the reason why a backend does not support these operands; None if it does."""
    if backend == MATH:
        return None
    if backend == CUDNN:
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
    if backend == EFFICIENT:
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
