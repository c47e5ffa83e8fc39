"""torch.nn.attention.flex_attention: functions of masks work; attention itself raises NotSupportedError.

A mask function `mask(b, h, q, kv)` takes the indices of the batch, the head, the query and the key, as tensors that
broadcast with each other, and returns a bool tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.names import lacking
from flambeau.tensor.functions.creation import arange, ones
from flambeau.tensor.tensor import Tensor

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention",
    "noop_mask", "or_masks",
]  # fmt: skip

_HERE = "torch.nn.attention.flex_attention"
_ADVICE = "Use scaled_dot_product_attention with a mask of create_mask, or with scores added as attn_mask."
_DEFAULT_SPARSE_BLOCK_SIZE = 128
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
__getattr__ = lacking(_HERE)

AuxOutput = absent_class(_HERE, "AuxOutput", _ADVICE)
AuxRequest = absent_class(_HERE, "AuxRequest", _ADVICE)
BlockMask = absent_class(_HERE, "BlockMask", _ADVICE)
create_block_mask = absent_function(_HERE, "create_block_mask", _ADVICE)
flex_attention = absent_function(_HERE, "flex_attention", _ADVICE)


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Return True: nothing is masked."""
    return ones((), dtype=bool, device=batch.device)


def or_masks(*mask_mods: Mask) -> Mask:
    """Return the mask function that is True where one of these is.

    Raises:
        RuntimeError: One of them cannot be called.
    """
    _require_callables(mask_mods)
    return lambda b, h, q, kv: reduce(lambda x, y: x | y, [m(b, h, q, kv) for m in mask_mods])


def and_masks(*mask_mods: Mask) -> Mask:
    """Return the mask function that is True where all of these are.

    Raises:
        RuntimeError: One of them cannot be called.
    """
    _require_callables(mask_mods)
    return lambda b, h, q, kv: reduce(lambda x, y: x & y, [m(b, h, q, kv) for m in mask_mods])


def _require_callables(mask_mods: tuple[Any, ...]) -> None:
    if not all(callable(each) for each in mask_mods):
        raise RuntimeError(f"All inputs should be callable mask_mods: {mask_mods}")


def create_mask(
    mod_fn: Mask, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """Return the mask of a mask function as a bool tensor.

    Args:
        mod_fn: The mask function.
        B: The number of batches; one if None.
        H: The number of heads; one if None.
        Q_LEN: The number of queries.
        KV_LEN: The number of keys.
        device: The device of the mask; the default device if None.

    Returns:
        Of shape (B, H, Q_LEN, KV_LEN).
    """
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    shapes = ((-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,))
    b, h, q, kv = [arange(n, device=device).view(shape) for n, shape in zip(sizes, shapes, strict=True)]
    mask: Tensor = mod_fn(b, h, q, kv).expand(sizes).contiguous()
    return mask
