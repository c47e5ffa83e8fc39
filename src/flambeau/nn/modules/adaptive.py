"""Softmax over many classes, the rare ones in clusters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from flambeau.nn.functional import log_softmax
from flambeau.nn.modules.container import ModuleList, Sequential
from flambeau.nn.modules.linear import Linear
from flambeau.nn.modules.module import Module
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


class _ASMoutput(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """log_softmax over `n_classes` classes, which are sorted by decreasing frequency and divided into clusters at
    `cutoffs`.

    The head has the first classes and one number for each other cluster. Cluster i first projects its input to
    in_features / div_value ** (i + 1) features. Inputs: input (N, in_features) or (in_features), target (N) or ().
    Returns the log-probability of each target, and the mean negative log-probability.

    Raises:
        ValueError: If cutoffs are not unique, positive, increasing and below n_classes.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        cuts = list(cutoffs)
        if not cuts:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        rising = all(a < b for a, b in pairwise([0, *cuts, n_classes]))
        if not rising or any(int(c) != c for c in cuts):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each "
                "value is between 1 and n_classes-1"
            )
        made = {"device": device, "dtype": dtype}
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cuts, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for i, (low, high) in enumerate(pairwise(self.cutoffs)):
            width = int(in_features // (div_value ** (i + 1)))
            first = Linear(in_features, width, bias=False, **made)
            self.tail.append(Sequential(first, Linear(width, high - low, bias=False, **made)))

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        self.head.reset_parameters()
        for first, second in self.tail:
            first.reset_parameters()
            second.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        """Return the log-probabilities of the targets and the mean loss.

        The host waits for a GPU, because the targets decide which rows each cluster computes.

        Raises:
            RuntimeError: If shapes do not fit, or a target is not a class.
        """
        batched = self._check(input_, target_)
        input, target = (input_, target_) if batched else (input_.unsqueeze(0), target_.unsqueeze(0))
        output, chosen, seen = input.new_zeros(target.shape[0]), target.new_zeros(target.shape[0]), 0
        for i, (low, high) in enumerate(pairwise([0, *self.cutoffs])):
            rows = ((target >= low) & (target < high)).nonzero().squeeze(1)
            if not rows.numel():
                continue
            seen += rows.numel()
            wanted = target.index_select(0, rows) - low
            if i == 0:
                chosen.index_copy_(0, rows, wanted)
                continue
            chosen.index_fill_(0, rows, self.shortlist_size + i - 1)
            local = log_softmax(self.tail[i - 1](input.index_select(0, rows)), dim=1)
            output = output.index_copy(0, rows, local.gather(1, wanted.unsqueeze(1)).squeeze(1))
        if seen != target.shape[0]:
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range [{target.min().item()}, "
                f"{target.max().item()}] were found. "
            )
        head = log_softmax(self.head(input), dim=1)
        output = output + head.gather(1, chosen.unsqueeze(1)).squeeze(1)
        loss = (-output).mean()
        return _ASMoutput(output if batched else output.squeeze(0), loss)

    @staticmethod
    def _check(input: Tensor, target: Tensor) -> bool:
        """Return True if there is a batch."""
        dims = target.dim()
        if dims > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if dims == 1 and input.shape[0] != target.shape[0]:
            raise RuntimeError("Input and target should have the same size in the batch dimension.")
        if input.dim() != dims + 1:
            raise RuntimeError(
                f"{dims}D target tensor expects {dims + 1}D input tensors, but found inputs with size {input.shape}"
            )
        return dims == 1

    def _get_full_log_prob(self, input: Tensor, head_output: Tensor) -> Tensor:
        head = log_softmax(head_output, dim=1)
        parts = [head[:, : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            parts.append(log_softmax(tail(input), dim=1) + head[:, self.shortlist_size + i].unsqueeze(1))
        joined: Tensor = functions["cat"](parts, 1)
        return joined

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log-probabilities of all classes: (N, n_classes)."""
        return self._get_full_log_prob(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:
        """Return the most likely class of each row: (N). Clusters are computed for the rows that need them."""
        head: Tensor = self.head(input)
        found = head.argmax(1)
        rows = (found >= self.shortlist_size).nonzero().squeeze(1)
        if not rows.numel():
            return found
        full = self._get_full_log_prob(input.index_select(0, rows), head.index_select(0, rows))
        return found.index_copy(0, rows, full.argmax(1))
