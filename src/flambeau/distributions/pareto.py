"""`Pareto`."""

from __future__ import annotations

from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.exponential import Exponential
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import AffineTransform, ExpTransform
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.tensor import Tensor


class Pareto(TransformedDistribution):
    """The Pareto distribution: numbers above `scale` whose density falls as the power -(alpha + 1)."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        steps = [ExpTransform(), AffineTransform(loc=0, scale=self.scale)]
        super().__init__(base, steps, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Pareto:
        made: Any = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in self._grown_parts(Size(batch_shape), "scale", "alpha").items():
            setattr(made, name, value)
        super().expand(batch_shape, made)
        return made  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        """Return the mean, which is infinite for an alpha of at most 1."""
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        """Return the variance, which is infinite for an alpha of at most 2."""
        a = self.alpha.clamp(min=2)
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.greater_than_eq(self.scale)

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())
