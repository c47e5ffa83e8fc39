"""Base classes of distributions that share parameters.

`LocationScale` has `loc` and `scale`, `BinaryOdds` has `probs` or `logits`, `Relaxed` has a `temperature` in addition.
`FoldedAtZero` is the absolute value of a variable around 0, `FromFactor` has a matrix by its
Cholesky factor.
"""

from __future__ import annotations

import math
from numbers import Number
from typing import Any, Self

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.utils import (
    broadcast_all,
    lazy_property,
    logits_to_probs,
    one_of_two,
    probs_to_logits,
)
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.creation import zeros_like
from flambeau.tensor.tensor import Tensor


class LocationScale(Distribution):
    """A symmetric distribution of real numbers around `loc`, whose width is `scale`: numbers or tensors."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        both = isinstance(loc, Number) and isinstance(scale, Number)
        super().__init__(() if both else self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        shape = Size(batch_shape)
        return self._expand_parts(shape, _instance, **self._grown_parts(shape, "loc", "scale"))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc


class BinaryOdds(Distribution):
    """A distribution with either the probability `probs` of one of two outcomes or its log-odds `logits`."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    _grows: tuple[str, ...] = ("_param", "probs", "logits")  # by `expand`

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        one_of_two(probs, logits)
        given = logits if probs is None else probs
        (self._param,) = broadcast_all(given)
        if probs is None:
            self.logits = self._param
        else:
            self.probs = self._param
        super().__init__(() if isinstance(given, Number) else self._param.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        parts = self._grown_parts(Size(batch_shape), *self._grows)
        return self._expand_parts(batch_shape, _instance, **self._other_parts(), **parts)

    def _other_parts(self) -> dict[str, Any]:
        """Return the constructor arguments that `expand` passes on unchanged."""
        return {}

    @lazy_property
    def logits(self) -> Tensor:
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Size:
        return self._param.size()


class Relaxed(TransformedDistribution):
    """A discrete variable relaxed to continuous values: a transform of a distribution with its temperature and odds."""

    has_rsample = True  # type: ignore[assignment]
    base_dist: Any

    @property
    def temperature(self) -> Tensor:
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        return self.base_dist.logits

    @property
    def probs(self) -> Tensor:
        return self.base_dist.probs


class FoldedAtZero(TransformedDistribution):
    """The absolute value of a variable that is symmetric around 0 and has a `scale`: `base_dist`."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True  # type: ignore[assignment]
    base_dist: Any

    @property
    def scale(self) -> Tensor:
        return self.base_dist.scale  # type: ignore[no-any-return]

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.scale)

    def log_prob(self, value: Any) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self._log_density(value)

    def _log_density(self, value: Tensor) -> Tensor:
        both_sides = self.base_dist.log_prob(value) + math.log(2)
        return functions["where"](value >= 0, both_sides, -math.inf)  # type: ignore[no-any-return]

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1  # type: ignore[no-any-return]

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)  # type: ignore[no-any-return]


class FromFactor(Distribution):
    """A distribution with a matrix, its inverse or its lower Cholesky factor, from which the other two are computed."""

    _unbroadcasted_scale_tril: Tensor

    @lazy_property
    def scale_tril(self) -> Tensor:
        return self._expand_matrix(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        factor = self._unbroadcasted_scale_tril
        return self._expand_matrix(factor @ factor.mT)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        return self._expand_matrix(functions["cholesky_inverse"](self._unbroadcasted_scale_tril))

    def _expand_matrix(self, matrix: Tensor) -> Tensor:
        n = self._event_shape[-1]
        return matrix.expand((*self._batch_shape, n, n))
