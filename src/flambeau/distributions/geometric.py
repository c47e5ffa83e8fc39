"""`Geometric`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.families import BinaryOdds
from flambeau.distributions.utils import broadcast_all
from flambeau.nn.functional import binary_cross_entropy_with_logits
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class Geometric(BinaryOdds):
    """The number of failures before the first success of probability `probs`."""

    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        if self._validate_args and probs is not None and not (self.probs > 0).all():
            raise ValueError(
                f"Expected parameter probs ({type(self.probs).__name__} of shape {tuple(self.probs.shape)}) of "
                f"distribution {self!r} to be positive but found invalid values:\n{self.probs[~(self.probs > 0)]}"
            )

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        return creation.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            u = creation.empty(shape, dtype=self.probs.dtype, device=self.probs.device)
            u.uniform_(finfo(self.probs.dtype).tiny, 1)
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        probs = probs.masked_fill((probs == 1) & (value == 0), 0)
        return value * (-probs).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
