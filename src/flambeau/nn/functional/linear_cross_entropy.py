"""`linear_cross_entropy`: a linear layer and the cross entropy of its results."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import repeat
from typing import Any

from flambeau.autograd import grad as gradients
from flambeau.autograd.function import Function
from flambeau.core.callsite import warn_program
from flambeau.core.dtype import int64
from flambeau.nn.functional.convolution import linear
from flambeau.nn.functional.loss import cross_entropy
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor

Settings = tuple[str, int]
"""The reduction, and the class that adds no loss."""


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
        options: A `torch.nn.LinearCrossEntropyOptions` computes the logits of some rows at a time, and again in
            backward. It needs classes as the target, no label smoothing and a matrix as the weight; otherwise it is
            ignored, with a warning.

    Raises:
        RuntimeError: If shapes do not match, or `ignore_index` is used with probabilities.
    """
    x, w = input.meta, linear_weight.meta
    _check(x, w, linear_bias)
    if options is not None:
        if (
            w.ndim == 2
            and target.dtype is int64
            and not label_smoothing
            and reduction in ("mean", "sum", "none")
        ):
            settings = reduction, -100 if ignore_index is None else ignore_index
            found: Tensor = _in_parts(input, (linear_weight, linear_bias, weight), target, settings, options)
            return found
        warn_program(
            "linear_cross_entropy: ``options`` ignored; chunked path needs reduction in {'mean','sum','none'}, "
            "label_smoothing == 0, target.dtype == int64, out_features == (). Got "
            f"reduction={reduction!r}, label_smoothing={label_smoothing}, target.dtype={target.dtype}, "
            f"out_features={tuple(w.shape[1:-1])}.",
            UserWarning,
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


def _in_parts(input: Any, weights: Sequence[Any], target: Any, settings: Settings, options: Any) -> Any:
    """Return the loss of parts of the batch, whose logits backward computes again.

    Args:
        weights: The matrix, the bias or None, and the weight of each class or None.
    """
    if input.ndim == 1:
        single = _in_parts(input.unsqueeze(0), weights, target.unsqueeze(0), settings, options)
        return single.squeeze(0) if settings[0] == "none" else single
    module = import_module("flambeau.nn.modules.linear_cross_entropy_options")
    wide = module.accumulation_dtype(options, input.dtype)
    is_small_cpu = input.dtype.itemsize == 2 and not input.is_cuda
    size = module.rows_at_once(options, *input.shape, weights[0].shape[0], is_small_cpu)
    losses = _Parts.apply(input, *weights, target, settings, wide, size)
    if settings[0] == "mean":
        counted = target != settings[1]
        scale = weights[2]
        losses = losses / (counted.sum() if scale is None else scale.to(wide)[target[counted]].sum())
    return losses.to(input.dtype)


class _Parts(Function):
    """The losses of parts of the rows, computed one part after the other: their sum, or one loss for each row."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Any,
        matrix: Any,
        bias: Any,
        scale: Any,
        target: Any,
        settings: Any,
        wide: Any,
        size: int,
    ) -> Any:
        ctx.save_for_backward(input, matrix, bias, scale, target)
        ctx.settings, ctx.wide, ctx.size = settings, wide, size
        parts = zip(input.split(size), target.split(size), strict=True)
        losses = [_loss(x, matrix, bias, scale, t, settings, wide) for x, t in parts]
        return functions["cat"](losses) if settings[0] == "none" else sum(losses[1:], losses[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        input, matrix, bias, scale, target = ctx.saved_tensors
        (grad,) = grads
        sums = [None if t is None else functions["zeros_like"](t, dtype=ctx.wide) for t in (matrix, bias)]
        rows = []
        parts = zip(input.split(ctx.size), target.split(ctx.size), strict=True)
        outer = grad.split(ctx.size) if ctx.settings[0] == "none" else repeat(grad)
        for (x, t), g in zip(parts, outer, strict=False):
            leaves = [
                None if v is None else v.detach().to(ctx.wide).requires_grad_() for v in (x, matrix, bias)
            ]
            with recording(True):
                loss = _loss(*leaves, scale, t, ctx.settings, ctx.wide)
            of_row, *others = gradients(loss, [v for v in leaves if v is not None], g)
            rows.append(of_row.to(input.dtype))
            for total, part in zip([s for s in sums if s is not None], others, strict=True):
                total += part
        of_matrix, of_bias = (None if s is None else s.to(matrix.dtype) for s in sums)
        return functions["cat"](rows), of_matrix, of_bias, None, None, None, None, None


def _loss(x: Any, matrix: Any, bias: Any, scale: Any, target: Any, settings: Settings, wide: Any) -> Any:
    """Return the sum of losses of some rows, or each, in dtype `wide`."""
    x, matrix, bias, scale = (None if t is None else t.to(wide) for t in (x, matrix, bias, scale))
    reduction = "none" if settings[0] == "none" else "sum"
    return cross_entropy(
        linear(x, matrix, bias), target, weight=scale, reduction=reduction, ignore_index=settings[1]
    )


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
