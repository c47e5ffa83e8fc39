"""`LogitRelaxedBernoulli`, `RelaxedBernoulli`."""

from __future__ import annotations

from numbers import Number
from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import SigmoidTransform
from flambeau.distributions.utils import (
    broadcast_all,
    clamp_probs,
    lazy_property,
    logits_to_probs,
    one_of_two,
    probs_to_logits,
)
from flambeau.tensor.random import rand
from flambeau.tensor.tensor import Tensor


class LogitRelaxedBernoulli(Distribution):
    """The log-odds of a relaxed Bernoulli variable (Maddison et al., 2017)."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    has_rsample = True

    def __init__(
        self, temperature: Tensor, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        one_of_two(probs, logits)
        self.temperature = temperature
        given = logits if probs is None else probs
        (self._param,) = broadcast_all(given)
        if probs is None:
            self.logits = self._param
        else:
            self.probs = self._param
        super().__init__(() if isinstance(given, Number) else self._param.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogitRelaxedBernoulli:
        names = [name for name in ("_param", "probs", "logits") if name in self.__dict__]
        parts = {name: self.__dict__[name].expand(Size(batch_shape)) for name in names}
        return self._expanded(batch_shape, _instance, temperature=self.temperature, **parts)

    @lazy_property
    def logits(self) -> Tensor:
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Size:
        return self._param.size()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        probs = clamp_probs(self.probs.expand(shape))
        u = clamp_probs(rand(shape, dtype=probs.dtype, device=probs.device))
        return (u.log() - (-u).log1p() + probs.log() - (-probs).log1p()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        away = logits - value.mul(self.temperature)
        return self.temperature.log() + away - 2 * away.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """A Bernoulli variable relaxed to (0, 1): the nearer to 0 the temperature, the nearer to 0 and 1."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True  # type: ignore[assignment]
    base_dist: LogitRelaxedBernoulli  # type: ignore[assignment]

    def __init__(
        self, temperature: Tensor, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(
            LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args=validate_args
        )

    @property
    def temperature(self) -> Tensor:
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        return self.base_dist.logits

    @property
    def probs(self) -> Tensor:
        return self.base_dist.probs
