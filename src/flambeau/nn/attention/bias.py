"""torch.nn.attention.bias: causal masks for queries and keys of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, auto
from typing import Any

import flambeau.nn.functional as F
from flambeau.core.callsite import warn_program
from flambeau.core.device import device as Device
from flambeau.core.dtype import bool_
from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.creation import ones
from flambeau.tensor.tensor import Tensor

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]


class CausalVariant(IntEnum):
    """The corner of the matrix of queries and keys at which the diagonal of a causal mask is."""

    UPPER_LEFT = auto()
    LOWER_RIGHT = auto()


class CausalBias(Tensor):
    """A causal mask that `scaled_dot_product_attention` takes as `attn_mask`. Its elements have no meaning.

    Args:
        variant: Upper left: query i attends to keys 0 to i. Lower right: the last query attends to all keys.
        seq_len_q: The number of queries.
        seq_len_kv: The number of keys.
    """

    def __init__(self, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> None:
        if not isinstance(variant, CausalVariant):
            raise AssertionError(f"variant must be a CausalVariant, got {type(variant).__name__}")
        super().__init__()
        self.variant, self.seq_len_q, self.seq_len_kv = variant, seq_len_q, seq_len_kv
        if seq_len_q > seq_len_kv and variant is CausalVariant.LOWER_RIGHT:
            warn_program(
                "Lower right causal bias will produce NaNs in the output when seq_len_q > seq_len_kv!",
                UserWarning,
            )

    def _materialize(self, device: Device | str | None = None) -> Tensor:
        """Return the mask as a tensor of dtype bool, on the CPU by default."""
        every = ones(self.seq_len_q, self.seq_len_kv, dtype=bool_, device="cpu" if device is None else device)
        offset = self.seq_len_kv - self.seq_len_q if self.variant is CausalVariant.LOWER_RIGHT else 0
        mask: Tensor = functions["tril"](every, diagonal=offset)
        return mask

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function; attention with the mask that this object describes."""
        if func is F.scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    def __repr__(self) -> str:
        return repr(self._materialize())


def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: CausalBias, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if is_causal:
        raise ValueError("CausalBias should not be used with causal=True")
    upper = attn_mask.seq_len_q == attn_mask.seq_len_kv or attn_mask.variant is CausalVariant.UPPER_LEFT
    mask = None if upper else attn_mask._materialize(query.device)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, upper, scale, enable_gqa)


def causal_upper_left(*size: int) -> CausalBias:
    """Return a causal mask of the size (queries, keys) whose diagonal begins at the upper left corner.

    Raises:
        AssertionError: If there are not two sizes.
    """
    return CausalBias(CausalVariant.UPPER_LEFT, *_pair(size, "causal_upper_left"))


def causal_lower_right(*size: int) -> CausalBias:
    """Return a causal mask of the size (queries, keys) whose diagonal ends at the lower right corner.

    Raises:
        AssertionError: If there are not two sizes.
    """
    return CausalBias(CausalVariant.LOWER_RIGHT, *_pair(size, "causal_lower_right"))


def _pair(size: Sequence[int], name: str) -> tuple[int, int]:
    if len(size) != 2:
        raise AssertionError(f"{name} only supports 2D tensors")
    return size[0], size[1]


explain_absent_names(globals(), "torch.nn.attention.bias")
