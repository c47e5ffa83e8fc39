"""`NegativeBinomial`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.gamma import Gamma
from flambeau.distributions.utils import (
    broadcast_all,
    lazy_property,
    logits_to_probs,
    one_of_two,
    probs_to_logits,
)
from flambeau.nn.functional import logsigmoid
from flambeau.tensor.random import poisson
from flambeau.tensor.tensor import Tensor


class NegativeBinomial(Distribution):
    """How often something of probability `probs` (log-odds `logits`) happens before `total_count` times it does not."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        one_of_two(probs, logits)
        count, self._param = broadcast_all(total_count, logits if probs is None else probs)
        self.total_count = count.type_as(self._param)
        if probs is None:
            self.logits = self._param
        else:
            self.probs = self._param
        super().__init__(self._param.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NegativeBinomial:
        shape = Size(batch_shape)
        parts = self._grown_parts(shape, "total_count", "_param", "probs", "logits")
        return self._expanded(shape, _instance, **parts)

    @lazy_property
    def logits(self) -> Tensor:
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Size:
        return self._param.size()

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
        """Counts whose rates are Gamma's numbers."""
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
