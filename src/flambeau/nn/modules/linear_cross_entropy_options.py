"""`LinearCrossEntropyOptions`: how `F.linear_cross_entropy` divides a batch, so that it never holds all logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flambeau.core.dtype import bfloat16, dtype, float16, float32, float64

_POLICIES = ("auto", "accurate", "balanced", "compact")
_KINDS = (float16, bfloat16, float32, float64)


@dataclass(slots=True, frozen=True)
class LinearCrossEntropyOptions:
    """Options that compute logits for some rows of the batch at a time, and again in backward.

    Attributes:
        allow_retain_graph: No effect: backward computes each part again and may run several times.
        batch_chunk_size: The number of rows of a part; None leaves it to `chunking_method`.
        chunking_method: "aspect_ratio" makes a part's logits about as large as the input, "aspect_ratio:N" N times
            smaller; None makes one part. "auto" is "aspect_ratio" for 16-bit dtypes on the CPU, else "aspect_ratio:2".
        acc_policy: One of "auto", "accurate", "balanced" and "compact". All have the precision of "accurate".
        acc_dtype: The dtype of logits and losses; None is float32 for 16-bit inputs with "auto", else the input's.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: Literal["accurate", "balanced", "compact", "auto"] = "auto"
    acc_dtype: dtype | None = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            raise ValueError(f"invalid acc_policy: {self.acc_policy!r}")
        if not isinstance(self.chunking_method, str | None):
            raise TypeError(f"chunking_method must be a str or None, got {self.chunking_method!r}")
        if self.chunking_method not in (None, "auto"):
            name, separator, factor = self.chunking_method.partition(":")
            if name != "aspect_ratio" or (separator and not (factor.isdigit() and int(factor) > 0)):
                raise ValueError(f"invalid chunking_method: {self.chunking_method!r}")
        size = self.batch_chunk_size
        if not (size is None or (isinstance(size, int) and size > 0)):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")
        if self.acc_dtype not in (None, *_KINDS):
            raise ValueError(
                "acc_dtype must be one of {None, torch.float16, torch.bfloat16, torch.float32, torch.float64}, got "
                f"{self.acc_dtype!r}. Pass acc_dtype=None to let the op pick automatically."
            )


def rows_at_once(
    options: LinearCrossEntropyOptions, rows: int, features: int, classes: int, is_small_cpu: bool
) -> int:
    """Return the number of rows of a part.

    Args:
        rows: Rows of the batch.
        is_small_cpu: True for a 16-bit dtype on the CPU.

    Raises:
        ValueError: If `batch_chunk_size` and `chunking_method` are both given and differ.
    """
    size, method = options.batch_chunk_size, options.chunking_method
    if method == "auto":
        method = None if size is not None else ("aspect_ratio" if is_small_cpu else "aspect_ratio:2")
    if method is None:
        return max(1, rows if size is None else min(size, rows))
    wanted = -(-rows // -(-classes // features))
    found = min((1 << (wanted - 1).bit_length()) // int(method.partition(":")[2] or 1), rows)
    if size not in (None, found):
        raise ValueError(
            f"batch_chunk_size (={size}) and chunking_method ('{options.chunking_method}') give different chunk sizes "
            f"({size} vs {found}); pass only one."
        )
    return max(1, found)


def accumulation_dtype(options: LinearCrossEntropyOptions, kind: dtype) -> dtype:
    """Return the dtype of logits and losses for an input of dtype `kind`."""
    if options.acc_dtype is not None:
        return options.acc_dtype
    return float32 if options.acc_policy == "auto" and kind in (float16, bfloat16) else kind
