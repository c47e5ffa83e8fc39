"""`Kumaraswamy`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.gumbel import EULER
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import AffineTransform, PowerTransform
from flambeau.distributions.uniform import Uniform
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class Kumaraswamy(TransformedDistribution):
    """The Kumaraswamy distribution of numbers in (0, 1): like a beta distribution, with a cumulative distribution
    function in closed form.
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True  # type: ignore[assignment]

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        base = Uniform(
            creation.zeros_like(self.concentration0),
            creation.ones_like(self.concentration0),
            validate_args=validate_args,
        )
        steps = [
            PowerTransform(self.concentration0.reciprocal()),
            AffineTransform(1.0, -1.0),
            PowerTransform(self.concentration1.reciprocal()),
        ]
        super().__init__(base, steps, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Kumaraswamy:
        made: Any = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in self._grown_parts(Size(batch_shape), "concentration1", "concentration0").items():
            setattr(made, name, value)
        super().expand(batch_shape, made)
        return made  # type: ignore[no-any-return]

    def _moment(self, n: int) -> Tensor:
        """Return the mean of x**n."""
        a, b = self.concentration1, self.concentration0
        power = 1 + n / a
        return (b.log() + power.lgamma() + b.lgamma() - (power + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        """Return the position of the density's maximum; NaN where it has no single inner maximum."""
        a, b = self.concentration1, self.concentration0
        log_mode = a.reciprocal() * (-b).log1p() - (-a * b).log1p()
        return log_mode.exp().masked_fill((a < 1) | (b < 1), math.nan)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self.mean.square()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
