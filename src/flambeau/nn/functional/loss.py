"""Losses. `reduction` is "none", "mean" or "sum"; the older `size_average` and `reduce` override it if they are not
None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING, INTEGRAL, can_cast, int64, promote_types
from flambeau.core.errors import argument_type, type_name
from flambeau.core.layout import broadcast_shapes
from flambeau.nn.functional.activation import logsigmoid, refuse_gradient, require_tensor
from flambeau.nn.functional.distance import pairwise_distance
from flambeau.ops.autocast_rules import FLOAT32, FLOAT32_ON_CPU
from flambeau.ops.nn import loss as ops
from flambeau.ops.nn.ctc import ctc_loss as ctc_op
from flambeau.ops.op import Derivative, Op, names_of
from flambeau.ops.reduce.softmax import log_softmax
from flambeau.tensor import autocast, dispatch, interception
from flambeau.tensor.arguments.arg_errors import KINDS
from flambeau.tensor.arguments.options import integer
from flambeau.tensor.autograd.composites import Composite, record_composite, wants_node
from flambeau.tensor.call import call
from flambeau.tensor.exchange import data
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.arithmetic import where
from flambeau.tensor.signatures import compares
from flambeau.tensor.tensor import Tensor

Distance = Callable[[Tensor, Tensor], Tensor]


def reduction_of(size_average: bool | None, reduce: bool | None, reduction: str, function: str = "") -> str:
    """Return the reduction that the arguments request.

    Args:
        size_average: An older argument that chooses a reduction, as `reduce` does.
        reduce: See `size_average`.
        reduction: The name of a reduction.
        function: A function that raises TypeError for a name that is not a str, as PyTorch's does.

    Raises:
        ValueError: If `reduction` is not the name of one.
    """
    if size_average is not None or reduce is not None:
        average, reduced = size_average is None or size_average, reduce is None or reduce
        reduction = "mean" if average and reduced else "sum" if reduced else "none"
        warn_program(
            f"size_average and reduce args will be deprecated, please use reduction='{reduction}' instead.",
            UserWarning,
        )
    elif function and not isinstance(reduction, str):
        raise TypeError(f"{function}(): argument 'reduction' must be str, not {type_name(reduction)}")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return reduction


def _reduce(loss: Tensor, mode: str) -> Tensor:
    return loss if mode == "none" else loss.mean() if mode == "mean" else loss.sum()


def _loss(op: Op, args: Sequence[Any], mode: str) -> Tensor:
    """Return an elementwise loss, reduced. As in PyTorch, it is one autograd node."""
    if interception.count and dispatch.is_shown(args):
        return dispatch.compose("loss", op.name, args, mode)  # type: ignore[no-any-return]
    if mode == "none" or not wants_node(args):
        return _reduce(call(op, args), mode)
    if autocast.threads:
        args = autocast.cast_inputs(op, args)
    return record_composite(_reduced_loss(op, mode), args, lambda: _reduce(call(op, args), mode))


class _OfReduced:
    """A formula of an elementwise loss, for the gradient of its mean or sum."""

    def __init__(self, formula: Callable[..., Any], mode: str) -> None:
        self._formula, self._mode = formula, mode
        names = names_of(formula)
        self.names, self._at = (*names, "metas"), names.index("grad")

    def __call__(self, *values: Any) -> Any:
        *inputs, metas = values
        grad, shape, count = inputs[self._at], metas[0].shape, metas[0].numel if self._mode == "mean" else 1
        if all(meta is None or meta.plain for meta in metas):
            inputs[self._at] = (grad / count if count != 1 else grad).expand(shape)
        else:  # divided at each element, the gradient is contiguous, as PyTorch's is
            inputs[self._at] = grad.expand(shape) / count if self._mode == "mean" else grad.expand(shape)
        return self._formula(*inputs)


class _ReducedLoss(Composite):
    """The autograd node of the mean or sum of an elementwise loss."""

    op: Any
    mode: str

    def joint_formula(self, needs: Sequence[bool]) -> _OfReduced | None:
        formula = self.op.joint_formula(needs)
        return formula and _OfReduced(formula, self.mode)


@cache
def _reduced_loss(op: Op, mode: str) -> Composite:
    formulas = [formula and _OfReduced(formula, mode) for formula in op.derivative.formulas]
    return _ReducedLoss(op.name, Derivative(*formulas), op, mode)


# -- of differences -------------------------------------------------------------------------------------


def _pair(input: Tensor, target: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return both of the broadcast shape, with PyTorch's warning where they differ."""
    if require_tensor(target, name, "target", 2).meta.shape == require_tensor(input, name).meta.shape:
        return input, target
    warn_program(
        f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). This will "
        "likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
        UserWarning,
    )
    shape = broadcast_shapes([input.shape, target.shape])
    return input.expand(shape), target.expand(shape)


def _check_weight(weight: Tensor | None, input: Tensor) -> None:
    if weight is not None and weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")


def _reduce_weighted(loss: Tensor, weight: Tensor | None, mode: str) -> Tensor:
    if weight is None:
        return _reduce(loss, mode)
    loss = loss * weight
    return loss.sum() / weight.sum() if mode == "mean" else _reduce(loss, mode)


def mse_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the squared difference."""
    pair, mode = _pair(input, target, "mse_loss"), reduction_of(size_average, reduce, reduction)
    _check_weight(weight, input)
    if weight is None:
        return _loss(ops.mse_loss, pair, mode)
    return _reduce_weighted((pair[0] - pair[1]) ** 2, weight, mode)


def l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the absolute difference."""
    if autocast.threads:
        input, target = autocast.cast(FLOAT32, input, target)
    pair, mode = _pair(input, target, "l1_loss"), reduction_of(size_average, reduce, reduction)
    _check_weight(weight, input)
    return _reduce_weighted((pair[0] - pair[1]).abs(), weight, mode)


def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """Return half the squared difference over beta, or past beta a line.

    Raises:
        RuntimeError: For beta < 0.
    """
    if autocast.threads:
        input, target = autocast.cast(ops.smooth_l1_loss.autocast, input, target)
    pair, mode = _pair(input, target, "smooth_l1_loss"), reduction_of(size_average, reduce, reduction)
    if not beta >= 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return _reduce((pair[0] - pair[1]).abs(), mode)
    return _loss(ops.smooth_l1_loss, (*pair, float(beta)), mode)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Return half the squared difference, or past delta a line.

    Raises:
        RuntimeError: For delta <= 0.
    """
    pair, mode = _pair(input, target, "huber_loss"), reduction_of(None, None, reduction)
    if not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    common = promote_types(input.dtype, target.dtype)
    if not can_cast(common, input.dtype):
        raise RuntimeError(
            f"result type {common.torch_name} can't be cast to the desired output type {input.dtype.torch_name}"
        )
    if weight is None and common is input.dtype:
        return _loss(ops.huber_loss, (*pair, float(delta)), mode)
    loss = call(ops.huber_loss, (*pair, float(delta))).to(input.dtype)
    if weight is not None:
        require_tensor(weight, "huber_loss", "weight", 5)
        _check_weight(weight, input)
        loss = loss * weight
    return _reduce(loss, mode)  # by the count, as in PyTorch


# -- of classes -----------------------------------------------------------------------------------------


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the negative log-likelihood of classes: input (C), (N, C) or (N, C, ...), target without the C.

    The mean divides by the sum of the weights of the targets.

    Raises:
        IndexError: For a target out of range.
    """
    mode = reduction_of(size_average, reduce, reduction)
    ignore_index = integer(ignore_index, "nll_loss_nd", "ignore_index", 5)
    return _nll(
        require_tensor(input, "nll_loss_nd"),
        require_tensor(target, "nll_loss_nd", "target", 2),
        weight,
        ignore_index,
        mode,
    )


def _nll(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, mode: str) -> Tensor:
    x, y = input.meta, target.meta
    if x.ndim == 0:
        raise ValueError(f"Expected 1 or more dimensions (got {x.ndim})")
    batch = y.shape[0] if y.ndim else 0
    if x.ndim != 1 and x.shape[0] != batch:
        raise ValueError(f"Expected input batch_size ({x.shape[0]}) to match target batch_size ({batch}).")
    if x.ndim == 1 and y.shape == (1,):
        target = target.view(())
    refuse_gradient("nll_loss_forward" if x.ndim < 3 else "nll_loss2d_forward", "weight", weight)
    args = (input, target) if weight is None else (input, target, weight)
    loss: Tensor = call(ops.nll_loss, args, (mode, ignore_index))
    return loss


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return the cross entropy of logits with classes, or with probabilities of the input's shape; see `nll_loss`."""
    mode = reduction_of(size_average, reduce, reduction)
    if label_smoothing > 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing:g}")
    if not label_smoothing > 0:  # negative, or NaN: PyTorch does not smooth
        label_smoothing = 0.0
    ignore_index = integer(ignore_index, "cross_entropy_loss", "ignore_index", 5)
    if autocast.threads:
        input, target, weight = autocast.cast(FLOAT32_ON_CPU, input, target, weight)
    x, y = (
        require_tensor(input, "cross_entropy_loss").meta,
        require_tensor(target, "cross_entropy_loss", "target", 2).meta,
    )
    if weight is not None:
        require_tensor(weight, "cross_entropy_loss", "weight", 3)
    axis = 0 if x.ndim == 1 else 1
    if x.shape == y.shape and x.ndim:
        return _of_probabilities(input, target, weight, ignore_index, mode, label_smoothing, axis)
    scores = call(log_softmax, (input,), (axis, None))
    loss = _nll(scores, target, weight, ignore_index, mode)
    if not label_smoothing:
        return loss
    even = _even(scores, target, weight, ignore_index, mode, axis)
    return (1 - label_smoothing) * loss + even * (label_smoothing / (input.shape[axis] or math.nan))


def _along(weight: Tensor, ndim: int, axis: int) -> Tensor:
    return weight.reshape([-1 if d == axis else 1 for d in range(ndim)])


def _even(
    scores: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, mode: str, axis: int
) -> Tensor:
    """Return the loss against the uniform distribution of classes, which label smoothing mixes in."""
    ignored = target == ignore_index
    weighted = scores if weight is None else scores * _along(weight, scores.dim(), axis)
    loss = -weighted.sum(axis)
    loss = loss.masked_fill(ignored, 0)
    if mode != "mean":
        return _reduce(loss, mode)
    if weight is None:
        return loss.sum() / (~ignored).sum()
    chosen = weight.take(target.masked_fill(ignored, 0)).masked_fill(ignored, 0)
    return loss.sum() / chosen.sum()


def _of_probabilities(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    mode: str,
    smoothing: float,
    axis: int,
) -> Tensor:
    if target.dtype.category < FLOATING:
        raise RuntimeError(
            f"Expected floating point type for target with class probabilities, got {target.dtype.torch_name}"
        )
    if ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target")
    classes = input.shape[axis]
    if weight is not None and weight.shape != (classes,):
        raise RuntimeError(
            f"cross_entropy: weight tensor should be defined either for all {classes} classes or no classes but "
            f"got weight tensor of shape: {list(weight.shape)}"
        )
    if smoothing:
        target = target * (1 - smoothing) + smoothing / (classes or math.nan)
    scores = call(log_softmax, (input,), (axis, None))
    product = scores * target if weight is None else scores * target * _along(weight, input.dim(), axis)
    if mode == "none":
        return -product.sum(axis)
    return -product.sum() / (input.numel() / (classes or math.nan)) if mode == "mean" else -product.sum()


@compares("p")
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the sum over classes of max(0, margin - x[target] + x[class]) ** p, divided by the number of classes."""
    mode = reduction_of(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError("weight must be one-dimensional")
    refuse_gradient("multi_margin_loss", "weight", weight)
    rows, classes = (input, target) if input.dim() > 1 else (input.reshape(1, -1), target.reshape(-1))
    args = (rows, classes) if weight is None else (rows, classes, weight)
    loss = call(ops.multi_margin_loss, args, (p, float(margin)))
    return _reduce(loss if input.dim() > 1 or mode != "none" else loss.reshape(()), mode)


def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the margin loss of 1 between each label and each other class. A row of `target` lists labels, ended by
    -1.
    """
    mode = reduction_of(size_average, reduce, reduction)
    if input.shape != target.shape:
        raise RuntimeError(
            f"inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}"
        )
    flat = input.dim() < 2
    rows = (input.reshape(1, -1), target.reshape(1, -1)) if flat else (input, target)
    loss = call(ops.multilabel_margin_loss, rows)
    return _reduce(loss.reshape(()) if flat and mode == "none" else loss, mode)


@compares("target", "weight")
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the mean logistic loss over classes, the last dimension."""
    mode = reduction_of(size_average, reduce, reduction, "multilabel_soft_margin_loss")
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    axis = input.dim() - 1
    return _reduce(loss.sum(axis) / input.shape[axis], mode)


# -- of probabilities -----------------------------------------------------------------------------------


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the cross entropy of probabilities.

    Raises:
        RuntimeError: For a probability or a target outside [0, 1].
        ValueError: If shapes differ.
    """
    mode = reduction_of(size_average, reduce, reduction)
    if weight is not None:
        require_tensor(weight, "binary_cross_entropy", "weight", 3)
    if (
        require_tensor(target, "binary_cross_entropy", "target", 2).shape
        != require_tensor(input, "binary_cross_entropy").shape
    ):
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is deprecated. "
            "Please ensure they have the same size."
        )
    if autocast.threads:
        input, target, weight = autocast.cast(ops.binary_cross_entropy.autocast, input, target, weight)
    if target.dtype is not input.dtype:
        raise RuntimeError(f"Found dtype {target.dtype.torch_name} but expected {input.dtype.torch_name}")
    if weight is None:
        return _loss(ops.binary_cross_entropy, (input, target), mode)
    refuse_gradient("binary_cross_entropy", "weight", weight)
    return _reduce(call(ops.binary_cross_entropy, (input, target)) * weight.expand(input.shape), mode)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the cross entropy of sigmoid(input); `pos_weight` weighs the positive part of each class."""
    mode = reduction_of(size_average, reduce, reduction)
    name = "binary_cross_entropy_with_logits"
    for argument, value, position in (("weight", weight, 3), ("pos_weight", pos_weight, 7)):
        if value is not None:
            require_tensor(value, name, argument, position)
    if require_tensor(target, name, "target", 2).shape != require_tensor(input, name).shape:
        raise ValueError(f"Target size ({target.shape}) must be the same as input size ({input.shape})")
    if autocast.threads:
        input, target, weight, pos_weight = autocast.cast(
            ops.binary_cross_entropy_with_logits.autocast, input, target, weight, pos_weight
        )
    alike = input.dtype is target.dtype
    if pos_weight is None and weight is None and alike:
        return _loss(ops.binary_cross_entropy_with_logits, (input, target), mode)
    refuse_gradient(name, "weight", weight)
    refuse_gradient(name, "pos_weight", pos_weight)
    if target.dtype.category < FLOATING:
        raise RuntimeError(
            f"result type {input.dtype.torch_name} can't be cast to the desired output type {target.dtype.torch_name}"
        )
    if pos_weight is None and alike:
        loss = call(ops.binary_cross_entropy_with_logits, (input, target))
    else:
        positive = logsigmoid(input)
        if pos_weight is not None:
            positive = ((pos_weight - 1) * target + 1) * positive
        loss = (1 - target) * input - positive
    loss = loss if weight is None else loss * weight
    return _reduce(loss.to(target.dtype), mode)  # PyTorch changes 1 - target in place


def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", log_target: bool = False,
) -> Tensor:  # fmt: skip
    """Return the Kullback-Leibler divergence of log-probabilities `input` from `target`; also reduction "batchmean"."""
    batch = reduction == "batchmean"
    mode = reduction_of(size_average, reduce, "sum" if batch else reduction)
    if input.dtype.category <= INTEGRAL or target.dtype.category <= INTEGRAL:
        raise RuntimeError("kl_div: Integral inputs not supported.")
    if input.dtype.is_complex or target.dtype.is_complex:
        raise RuntimeError("kl_div: Complex inputs not supported.")
    if not isinstance(log_target, bool):
        raise TypeError(argument_type("kl_div", "log_target", 4, "bool", log_target))
    if size_average is None and reduce is None and reduction == "mean":
        warn_program(
            "reduction: 'mean' divides the total loss by both the batch size and the support size.'batchmean' "
            "divides only by the batch size, and aligns with the KL div math definition.'mean' will be changed to "
            "behave the same as 'batchmean' in the next major release.",
            UserWarning,
        )
    if autocast.threads:
        input, target = autocast.cast(FLOAT32, input, target)
    loss = target.exp() * (target - input) if log_target else target.xlogy(target) - target * input
    return _reduce(loss, mode) / input.shape[0] if batch and input.dim() else _reduce(loss, mode)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: bool | None = None,
    eps: float = 1e-8, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the negative log-likelihood of Poisson counts; `full` adds Stirling's term."""
    mode = reduction_of(size_average, reduce, reduction, "poisson_nll_loss")
    require_tensor(input, "poisson_nll_loss")
    require_tensor(target, "poisson_nll_loss", "target", 2)
    for place, name, flag in ((3, "log_input", log_input), (4, "full", full)):
        if not isinstance(flag, bool):
            raise TypeError(argument_type("poisson_nll_loss", name, place, "bool", flag))
    if autocast.threads:
        input, target = autocast.cast(FLOAT32, input, target)
    loss = input.exp() - target * input if log_input else input - target * (input + float(eps)).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + stirling.masked_fill(target <= 1, 0)
    return _reduce(loss, mode)


@compares("eps", "full", "target")
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the negative log-likelihood of normal numbers with mean `input` and variance `var` (at least eps)."""
    spread = var * creation.ones_like(input) if isinstance(var, float) else var
    if not isinstance(spread, Tensor):
        raise TypeError(argument_type("gaussian_nll_loss", "var", 3, "Tensor or float", var))
    if bool((spread < 0).any()):
        raise ValueError("var has negative entry/entries")
    if spread.shape != input.shape:
        if tuple(input.shape[:-1]) == tuple(spread.shape):
            spread = spread.unsqueeze(-1)
        elif not _lacks_one_dimension(input, spread):
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(reduction + " is not valid")
    spread = spread.clone()
    spread.detach().clamp_(min=eps)  # gradients pass as if nothing were clamped
    loss = 0.5 * (spread.log() + (input - target) ** 2 / spread)
    return _reduce(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def _lacks_one_dimension(input: Tensor, var: Tensor) -> bool:
    apart = [m for n, m in zip(input.shape, var.shape, strict=False) if n != m]
    return var.dim() == input.dim() and apart == [1]


# -- of pairs and triplets --------------------------------------------------------------------------------


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return 1 - cos where target is 1, and cos - margin (0 at least) where it is -1."""
    mode = reduction_of(size_average, reduce, reduction)
    for position, x in enumerate((input1, input2), 1):
        require_tensor(x, "cosine_embedding_loss", f"input{position}", position)
    if require_tensor(target, "cosine_embedding_loss", "target", 3).dim() not in (0, 1):
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if input1.dim() != target.dim() + 1 or input2.dim() != target.dim() + 1:
        form = "1D" if target.dim() == 0 else "2D"
        raise RuntimeError(
            f"{target.dim()}D target tensor expects {form} input tensors, but found inputs with sizes "
            f"{list(input1.shape)} and {list(input2.shape)}."
        )
    if autocast.threads:
        input1, input2 = autocast.cast(FLOAT32, input1, input2)
    product = (input1 * input2).sum(-1)
    lengths = [(x * x).sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = product / (lengths[0] * lengths[1]).sqrt()
    zeros = creation.zeros_like(cosine)
    near = where(target == 1, 1 - cosine, zeros)
    return _reduce(near + where(target == -1, (cosine - float(margin)).clamp_min(0), zeros), mode)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return -target * (input1 - input2) + margin, 0 at least."""
    mode = reduction_of(size_average, reduce, reduction)
    if input1.dim() != input2.dim() or input1.dim() != target.dim():
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    return rank(input1, input2, target, margin, mode)


def rank(input1: Tensor, input2: Tensor, target: Tensor, margin: float, mode: str) -> Tensor:
    """Return `margin_ranking_loss` of tensors that broadcast."""
    if autocast.threads:
        input1, input2, target = autocast.cast(FLOAT32, input1, input2, target)
    return _reduce((-target * (input1 - input2) + float(margin)).clamp_min(0), mode)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return x where target is 1, and margin - x (0 at least) where it is -1."""
    mode = reduction_of(size_average, reduce, reduction)
    if autocast.threads:
        input, target = autocast.cast(FLOAT32, input, target)
    zeros = creation.zeros_like(input)
    margin = (
        int(margin) if input.dtype.category == INTEGRAL else float(margin)
    )  # PyTorch's result has the input's dtype
    far = where(target != 1, (margin - input).clamp_min(0), zeros)
    return _reduce(far + where(target != -1, input, zeros), mode)


def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return log(1 + exp(-target * x))."""
    require_tensor(input, "soft_margin_loss")
    require_tensor(target, "soft_margin_loss", "target", 2)
    if autocast.threads:
        input, target = autocast.cast(FLOAT32, input, target)
    if input.dtype.category <= INTEGRAL:
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {input.dtype.torch_name}"
        )
    if broadcast_shapes([input.shape, target.shape]) != tuple(input.shape):
        raise RuntimeError(
            f"soft_margin_loss: a target of shape {list(target.shape)} does not broadcast to the input's shape "
            f"{list(input.shape)}"
        )
    refuse_gradient("soft_margin_loss", "target", target)
    loss = (-input * target).exp().log1p()  # for mixed dtypes, the promoted one
    return _reduce(
        loss if loss.dtype.is_complex else loss.to(input.dtype), reduction_of(size_average, reduce, reduction)
    )


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is the p-norm distance and margin >
    0.
    """
    mode = reduction_of(size_average, reduce, reduction)
    _require_margin(margin)
    return triplet_of_norm(anchor, positive, negative, margin, p, eps, swap, mode)


def triplet_of_norm(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, p: float, eps: float, swap: bool, mode: str
) -> Tensor:  # fmt: skip
    """Return `triplet_margin_loss` of any margin."""
    if autocast.threads:
        anchor, positive, negative = autocast.cast(FLOAT32, anchor, positive, negative)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return _triplet(anchor, positive, negative, distance, float(margin), swap, mode)


@compares("margin", "swap")
def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Distance | None = None,
    margin: float = 1.0, swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return `triplet_margin_loss` of any distance."""
    distance = pairwise_distance if distance_function is None else distance_function
    _require_margin(margin)
    return _triplet(anchor, positive, negative, distance, margin, swap, reduction_of(None, None, reduction))


def _require_margin(margin: float) -> None:
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")


def _triplet(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance: Distance,
    margin: float,
    swap: bool,
    mode: str,
) -> Tensor:
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {anchor.dim()}D, positive {positive.dim()}D, and negative {negative.dim()}D inputs"
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return _reduce((margin + near - far).clamp_min(0), mode)


# -- of sequences -----------------------------------------------------------------------------------------


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Return the connectionist temporal classification loss.

    Args:
        log_probs: (T, N, C) or (T, C).
        targets: (N, S), or concatenated.
        input_lengths, target_lengths: (N).
        reduction: "mean" averages the losses divided by their target lengths.

    Raises:
        RuntimeError: If lengths or `blank` are out of range.
    """
    mode = reduction_of(None, None, reduction)
    batched = require_tensor(log_probs, "ctc_loss").dim() == 3
    probs = log_probs if batched else log_probs.unsqueeze(1)
    rows = targets if batched or targets.dim() != 1 else targets.unsqueeze(0)
    _require_alike(input_lengths, target_lengths)
    _check_lengths(probs, rows, input_lengths, target_lengths)
    given, wanted = (_lengths(x, probs) for x in (input_lengths, target_lengths))
    loss = call(ctc_op, (probs, rows.to(int64), given, wanted), (int(blank), bool(zero_infinity)))
    if zero_infinity:
        loss = where(loss == math.inf, creation.zeros_like(loss), loss)
    if mode == "mean":
        return (loss / wanted.clamp_min(1).to(loss.dtype)).mean()
    return _reduce(loss if batched else loss.reshape(()), mode)


def _require_alike(input_lengths: Any, target_lengths: Any) -> None:
    """Raise TypeError unless the lengths of a CTC loss are two tensors, or two lists of ints."""
    both = (input_lengths, target_lengths)
    if not (all(isinstance(x, Tensor) for x in both) or all(KINDS["IntTuple"].fits(x) for x in both)):
        given, wanted = map(type_name, both)
        raise TypeError(
            "ctc_loss(): input_lengths and target_lengths must be two Tensors or two tuples of ints, but got "
            f"{given} and {wanted}"
        )


def _check_lengths(probs: Tensor, targets: Tensor, *lengths: Tensor | Sequence[int]) -> None:
    """Raise RuntimeError for lengths that exceed their tensors; the host reads those on a GPU, as in PyTorch."""
    if any(isinstance(x, Tensor) and x.is_meta for x in (probs, *lengths)):
        return
    given, wanted = (
        [int(n) for n in (x.reshape(-1).tolist() if isinstance(x, Tensor) else x)] for x in lengths
    )
    for name, values in (("input_lengths", given), ("target_lengths", wanted)):
        if min(values, default=0) < 0:
            raise RuntimeError(f"Expected {name} to have value at least 0, but got value {min(values)}")
    if max(given, default=0) > probs.shape[0]:
        raise RuntimeError(
            f"Expected input_lengths to have value at most {probs.shape[0]}, but got value {max(given)} "
            "(while checking arguments for ctc_loss)"
        )
    padded = targets.dim() == 2
    needed, size = (max(wanted, default=0), targets.shape[1]) if padded else (sum(wanted), targets.numel())
    if needed > size or not (padded or needed == size):
        raise RuntimeError(
            f"Expected tensor to have size {'at least ' * padded}{needed} at dimension {int(padded)}, but got size "
            f"{size} for argument #2 'targets' (while checking arguments for ctc_loss)"
        )


def _lengths(x: Tensor | Sequence[int], like: Tensor) -> Tensor:
    made = x if isinstance(x, Tensor) else data.tensor(list(x), dtype=int64)
    return made.to(like.device, int64).reshape(-1)
