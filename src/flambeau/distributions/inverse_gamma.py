"""`InverseGamma`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.distributions import constraints
from flambeau.distributions.gamma import Gamma
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import PowerTransform
from flambeau.tensor.tensor import Tensor


class InverseGamma(TransformedDistribution):
    """The reciprocal of a number of `Gamma(concentration, rate)`."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True  # type: ignore[assignment]
    base_dist: Gamma  # type: ignore[assignment]

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(-base.rate.new_ones(())), validate_args=validate_args)

    @property
    def concentration(self) -> Tensor:
        return self.base_dist.concentration

    @property
    def rate(self) -> Tensor:
        return self.base_dist.rate

    @property
    def mean(self) -> Tensor:
        """Return the mean, which is infinite for a concentration of at most 1."""
        return (self.rate / (self.concentration - 1)).masked_fill(self.concentration <= 1, math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        """Return the variance, which is infinite for a concentration of at most 2."""
        a = self.concentration
        return (self.rate.square() / ((a - 1).square() * (a - 2))).masked_fill(a <= 2, math.inf)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()
