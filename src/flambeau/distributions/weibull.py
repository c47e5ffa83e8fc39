"""`Weibull`."""

from __future__ import annotations

from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.exponential import Exponential
from flambeau.distributions.gumbel import EULER
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import AffineTransform, PowerTransform
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class Weibull(TransformedDistribution):
    """The Weibull distribution: times to failure with a rate that grows as the power `concentration` - 1."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()
        base = Exponential(creation.ones_like(self.scale), validate_args=validate_args)
        steps = [
            PowerTransform(exponent=self.concentration_reciprocal),
            AffineTransform(loc=0, scale=self.scale),
        ]
        super().__init__(base, steps, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Weibull:
        made: Any = type(self).__new__(type(self)) if _instance is None else _instance
        names = ("scale", "concentration", "concentration_reciprocal")
        for name, value in self._grown_parts(Size(batch_shape), *names).items():
            setattr(made, name, value)
        super().expand(batch_shape, made)
        return made  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return self.scale * (1 + self.concentration_reciprocal).lgamma().exp()

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1) / k) ** k.reciprocal()

    @property
    def variance(self) -> Tensor:
        first = (2 * (1 + self.concentration_reciprocal).lgamma()).exp()
        return self.scale.square() * ((1 + 2 * self.concentration_reciprocal).lgamma().exp() - first)

    def entropy(self) -> Tensor:
        spread = (self.scale * self.concentration_reciprocal).log()
        return EULER * (1 - self.concentration_reciprocal) + spread + 1
