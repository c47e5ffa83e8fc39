"""`Normal`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.distributions.exp_family import ExponentialFamily
from flambeau.distributions.families import LocationScale
from flambeau.tensor.functions.random import normal, randn
from flambeau.tensor.tensor import Tensor


class Normal(LocationScale, ExponentialFamily):
    """The normal distribution with mean `loc` and standard deviation `scale`, numbers or tensors."""

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return normal(self.loc.expand(shape), self.scale.expand(shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + standard_normal(self._extended_shape(sample_shape), self.loc) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        distance = (value - self.loc) ** 2
        return -distance / (2 * self.variance) - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()

    _mean_carrier_measure = 0  # type: ignore[assignment]

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.loc / self.scale.square(), -0.5 * self.scale.square().reciprocal())

    def _log_normalizer(self, x: Any, y: Any) -> Tensor:
        return -0.25 * x.square() / y + 0.5 * (-math.pi / y).log()  # type: ignore[no-any-return]


def standard_normal(shape: Any, like: Tensor) -> Tensor:
    """Return normal numbers of a shape, of the dtype and device of `like`."""
    drawn: Tensor = randn(shape, dtype=like.dtype, device=like.device)
    return drawn
