"""`NegativeBinomial`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.distributions import constraints
from flambeau.distributions.families import BinaryOdds
from flambeau.distributions.gamma import Gamma
from flambeau.distributions.utils import broadcast_all, one_of_two
from flambeau.nn.functional import logsigmoid
from flambeau.tensor.functions.random import poisson
from flambeau.tensor.tensor import Tensor


class NegativeBinomial(BinaryOdds):
    """The number of successes of probability `probs` (log-odds `logits`) before `total_count` failures."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer
    _grows = ("total_count", *BinaryOdds._grows)

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        one_of_two(probs, logits)
        count, given = broadcast_all(total_count, logits if probs is None else probs)
        self.total_count = count.type_as(given)
        super().__init__(*((None, given) if probs is None else (given, None)), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return counts whose rates are Gamma's numbers."""
        with no_grad():
            rates = Gamma(self.total_count, (-self.logits).exp(), validate_args=False)
            return poisson(rates.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        together = self.total_count + value
        ways = together.lgamma() - (1.0 + value).lgamma() - self.total_count.lgamma()
        ways = ways.masked_fill(together == 0.0, 0.0)
        return self.total_count * logsigmoid(-self.logits) + value * logsigmoid(self.logits) + ways
