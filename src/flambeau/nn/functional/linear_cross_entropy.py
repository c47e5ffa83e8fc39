"""`linear_cross_entropy`: a linear layer and the cross entropy of its results."""

from __future__ import annotations

from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.nn.functional.convolution import linear
from flambeau.nn.functional.loss import cross_entropy
from flambeau.tensor.tensor import Tensor


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """Return `cross_entropy(linear(input, linear_weight, linear_bias), target)`.

    Args:
        input: (in_features) or (N, in_features).
        linear_weight: (C, ..., in_features), for C classes and one loss for each index of the middle dimensions.
        target: The classes, (N, ...), or their probabilities, (N, C, ...).
        linear_bias: (C, ...).
        weight: The weight of each class.
        reduction: "mean", "sum" or "none".
        ignore_index: A class that adds no loss.
        label_smoothing: As in `cross_entropy`.
        options: None. PyTorch's options compute the logits in chunks, which Flambeau does not.

    Raises:
        RuntimeError: If shapes do not match, or `ignore_index` is used with probabilities.
        NotSupportedError: If `options` is not None.
    """
    x, w = input.meta, linear_weight.meta
    _check(x, w, linear_bias)
    if options is not None:
        raise NotSupportedError(
            "linear_cross_entropy: Flambeau computes all logits in one step; pass options=None"
        )
    shape = (*x.shape[:-1], *w.shape[:-1])
    if target.meta.shape == shape and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    flat: Any = linear_weight
    bias: Any = linear_bias
    if len(w.shape) > 2:
        flat, bias = flat.reshape(-1, w.shape[-1]), None if bias is None else bias.reshape(-1)
    logits: Any = linear(input, flat, bias)
    return cross_entropy(
        logits.reshape(shape), target, weight=weight, reduction=reduction,
        ignore_index=-100 if ignore_index is None else ignore_index, label_smoothing=label_smoothing,
    )  # fmt: skip


def _check(x: Any, w: Any, bias: Tensor | None) -> None:
    if not 1 <= x.ndim <= 2:
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {x.ndim}")
    if w.ndim < 2:
        raise RuntimeError(f"expected linear_weight with dimensionality at least 2, got {w.ndim}")
    if x.shape[-1] != w.shape[-1]:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), got "
            f"{x.shape[-1]} and {w.shape[-1]}, respectively"
        )
    if bias is not None and bias.meta.shape != w.shape[:-1]:
        raise RuntimeError(f"expected linear_bias shape {tuple(w.shape[:-1])}, got {tuple(bias.meta.shape)}")
    if w.ndim > 2 and x.ndim == 1:
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {tuple(w.shape)} requires batched input, (N, "
            f"{x.shape[-1]}), got unbatched input with shape {tuple(x.shape)}"
        )
