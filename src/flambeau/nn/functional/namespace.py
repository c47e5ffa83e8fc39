"""Functions of torch.nn.functional that the torch namespace has too, with other arguments.

Their order differs, and losses take a number for the reduction: 0 none (as PyTorch has it by default here), 1
mean, 2 sum.
"""

from __future__ import annotations

from typing import Any

from flambeau.nn.functional import loss, normalization, pooling
from flambeau.nn.functional.sparse import bags_with_places
from flambeau.nn.functional.sparse import embedding as rows_of
from flambeau.tensor.arguments.arg_errors import IntOrTuple, IntTuple
from flambeau.tensor.arguments.public import function
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

Given = Tensor | None
_REDUCTIONS = {1: "mean", 2: "sum"}  # any other number: none


@function
def adaptive_max_pool1d(input: Tensor, output_size: IntOrTuple) -> Any:
    """Return the maxima of `output_size` windows, and their indices."""
    return pooling.adaptive_max_pool1d(input, output_size, return_indices=True)


@function
def batch_norm(
    input: Tensor, weight: Given, bias: Given, running_mean: Given, running_var: Given, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """Return each channel minus its mean, divided by its standard deviation."""
    return normalization.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@function
def instance_norm(
    input: Tensor, weight: Given, bias: Given, running_mean: Given, running_var: Given, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """Return each channel of each sample minus its mean, divided by its standard deviation."""
    return normalization.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


@function
def group_norm(
    input: Tensor, num_groups: int, weight: Given = None, bias: Given = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """Return each group of channels of each sample minus its mean, divided by its standard deviation."""
    return normalization.group_norm(input, num_groups, weight, bias, eps)


@function
def layer_norm(
    input: Tensor, normalized_shape: IntTuple, weight: Given = None, bias: Given = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    """Return the trailing dimensions minus their mean, divided by their standard deviation."""
    return normalization.layer_norm(input, normalized_shape, weight, bias, eps)


@function
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return rows of `weight` that `indices` name; the row `padding_idx` gets no gradient."""
    padding = padding_idx if 0 <= padding_idx < len(weight) else None
    return rows_of(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


@function
@signatures("""
embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None, include_last_offset: bool, padding_idx: int | None)
embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool=, mode: int=, sparse: bool=,
    per_sample_weights: Tensor | None=, include_last_offset: bool=)
""")
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Given = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Reduce the rows of `weight` that `indices` names, bag by bag.

    Args:
        offsets: The start of each bag in `indices`; with `include_last_offset` followed by the end.
        mode: 0 for the sum, 1 for the mean, 2 for the maximum.

    Returns:
        The bags, the bag of each index, the number of rows of each bag, and the index of each maximum. The last three
        are what a backward kernel reads: those that the mode does not need are empty or zeros, as in PyTorch.
    """
    return bags_with_places(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )


@function
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Given = None, pos_weight: Given = None, reduction: int = 0
) -> Tensor:
    """Return the cross entropy of sigmoid(input)."""
    return loss.binary_cross_entropy_with_logits(
        input, target, weight, reduction=_REDUCTIONS.get(reduction, "none"), pos_weight=pos_weight
    )


@function
def kl_div(input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False) -> Tensor:
    """Return the Kullback-Leibler divergence of log-probabilities `input` from `target`."""
    parts = loss.kl_div(input, target, reduction="none", log_target=log_target)
    how = _REDUCTIONS.get(reduction, "none")
    return parts if how == "none" else parts.mean() if how == "mean" else parts.sum()


@function
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 0) -> Tensor:
    """Return x where target is 1, and margin - x (0 at least) where it is -1."""
    return loss.hinge_embedding_loss(input, target, margin, reduction=_REDUCTIONS.get(reduction, "none"))


@function
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """Return max(0, -target * (input1 - input2) + margin)."""
    return loss.rank(input1, input2, target, margin, _REDUCTIONS.get(reduction, "none"))


@function
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """Return 1 - cos where target is 1, and cos - margin (0 at least) where it is -1."""
    return loss.cosine_embedding_loss(
        input1, input2, target, margin, reduction=_REDUCTIONS.get(reduction, "none")
    )


@function
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int
) -> Tensor:
    """Return the negative log-likelihood of Poisson counts."""
    how = _REDUCTIONS.get(reduction, "none")
    return loss.poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=how)


@function
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, reduction: int = 0,
) -> Tensor:  # fmt: skip
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is the p-norm distance."""
    how = _REDUCTIONS.get(reduction, "none")
    return loss.triplet_of_norm(anchor, positive, negative, margin, p, eps, swap, how)


@function
@signatures("""
ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: IntTuple, target_lengths: IntTuple, blank: int=,
    reduction: int=, zero_infinity: bool=)
ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int=,
    reduction: int=, zero_infinity: bool=)
""")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 0,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Return the connectionist temporal classification loss."""
    how = _REDUCTIONS.get(reduction, "none")
    return loss.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, how, zero_infinity)
