"""`Gamma`."""

from __future__ import annotations

from numbers import Number
from typing import Any

from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.exp_family import ExponentialFamily
from flambeau.distributions.rejection import _standard_gamma
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


class Gamma(ExponentialFamily):
    """The Gamma distribution with a concentration and a rate: its mean is concentration / rate."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        both = isinstance(concentration, Number) and isinstance(rate, Number)
        super().__init__(() if both else self.concentration.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Gamma:
        shape = Size(batch_shape)
        return self._expand_parts(shape, _instance, **self._grown_parts(shape, "concentration", "rate"))

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        value: Any = _standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
        value.detach().clamp_(min=finfo(value.dtype).tiny)  # 0 has no logarithm
        return value  # type: ignore[no-any-return]

    def log_prob(self, value: Any) -> Tensor:
        value = functions["as_tensor"](value, dtype=self.rate.dtype, device=self.rate.device)
        if self._validate_args:
            self._validate_sample(value)
        a = self.concentration
        return a.xlogy(self.rate) + (a - 1).xlogy(value) - self.rate * value - a.lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return functions["igamma"](self.concentration, self.rate * value)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()

    _mean_carrier_measure = 0  # type: ignore[assignment]

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration - 1, -self.rate)

    def _log_normalizer(self, x: Any, y: Any) -> Tensor:
        return (x + 1).lgamma() + (x + 1) * (-y.reciprocal()).log()  # type: ignore[no-any-return]
