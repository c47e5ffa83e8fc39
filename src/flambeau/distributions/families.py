"""What several distributions are made of: `LocationScale` (`loc` and `scale`), `BinaryOdds` (`probs` or `logits`),
`Relaxed` (a `temperature` beside those)."""

from __future__ import annotations

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
from flambeau.tensor.tensor import Tensor


class LocationScale(Distribution):
    """A distribution of real numbers around `loc`, symmetric, of a width that `scale` says: numbers or tensors."""

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
    """A distribution by the probability `probs` of one of two outcomes, or by its log-odds `logits`: one is given."""

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
        """What `expand` takes over as it is."""
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
    """A discrete variable relaxed to numbers between: a transform of what has its temperature and its odds."""

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
