"""`Normal`."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor import creation
from flambeau.tensor.random import normal
from flambeau.tensor.tensor import Tensor


class Normal(Distribution):
    """The normal distribution with mean `loc` and standard deviation `scale`, numbers or tensors."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        both = isinstance(loc, Number) and isinstance(scale, Number)
        super().__init__(() if both else self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Normal:
        shape = Size(batch_shape)
        parts = {"loc": self.loc.expand(shape), "scale": self.scale.expand(shape)}
        return self._expanded(shape, _instance, **parts)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

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


def standard_normal(shape: Any, like: Tensor) -> Tensor:
    """Normal numbers of a shape, of the dtype and device of `like`."""
    return creation.empty(shape, dtype=like.dtype, device=like.device).normal_()
