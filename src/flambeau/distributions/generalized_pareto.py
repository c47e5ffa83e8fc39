"""`GeneralizedPareto`."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.random import rand
from flambeau.tensor.tensor import Tensor


class GeneralizedPareto(Distribution):
    """The distribution of values above a high threshold `loc`. With concentration 0 it is exponential."""

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        numbers = all(isinstance(value, Number) for value in (loc, scale, concentration))
        super().__init__(() if numbers else self.loc.size(), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> GeneralizedPareto:
        shape = Size(batch_shape)
        return self._expand_parts(
            shape, _instance, **self._grown_parts(shape, "loc", "scale", "concentration")
        )

    @property
    def _is_exponential(self) -> Any:
        zero = functions["zeros_like"](self.concentration)
        return functions["isclose"](self.concentration, zero)

    @property
    def _nonzero(self) -> Any:
        """Return the concentration, 1 where it is about 0."""
        return functions["where"](self._is_exponential, 1.0, self.concentration)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        is_bounded: Any = self.concentration < 0
        upper = self.loc - self.scale / functions["where"](is_bounded, self.concentration, -1.0)
        return constraints.interval(self.loc, upper.masked_fill(~is_bounded, math.inf))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.icdf(rand(shape, dtype=self.loc.dtype, device=self.loc.device))

    def _z(self, x: Any) -> Any:
        return (x - self.loc) / self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z, k = self._z(value), self._nonzero
        power = (1 + 1 / k) * (k * z).log1p()
        return -self.scale.log() - functions["where"](self._is_exponential, z, power)  # type: ignore[no-any-return]

    def log_survival_function(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of a larger number."""
        if self._validate_args:
            self._validate_sample(value)
        z, k = self._z(value), self._nonzero
        return functions["where"](self._is_exponential, -z, -(k * z).log1p() / k)  # type: ignore[no-any-return]

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return the logarithm of `cdf`."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return self.log_cdf(value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        log_rest = (-value).log1p()
        k = self._nonzero
        z = functions["where"](self._is_exponential, -log_rest, (-k * log_rest).expm1() / k)
        return self.loc + self.scale * z  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        """Return the mean, which is infinite for a concentration of 1 or more."""
        k: Any = self.concentration
        finite = self.loc + self.scale / (1 - functions["where"](k < 1, k, 0.5))
        return finite.masked_fill(k >= 1, math.inf)  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        """Return the variance, which is infinite for a concentration of 1/2 or more."""
        k: Any = self.concentration
        small = functions["where"](k < 0.5, k, 0.25)
        finite = self.scale.square() / ((1 - small).square() * (1 - 2 * small))
        return finite.masked_fill(k >= 0.5, math.inf)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return (self.scale.log() + self.concentration + 1).expand(self._batch_shape)

    @property
    def mode(self) -> Tensor:
        return self.loc
