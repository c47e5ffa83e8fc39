"""`Cauchy`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.distributions.families import LocationScale
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class Cauchy(LocationScale):
    """The Cauchy distribution around `loc`, with half of its probability within `scale` of it. It has no mean."""

    def _full(self, value: float) -> Tensor:
        return creation.full(self._extended_shape(), value, dtype=self.loc.dtype, device=self.loc.device)

    @property
    def mean(self) -> Tensor:
        return self._full(math.nan)

    @property
    def variance(self) -> Tensor:
        return self._full(math.inf)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        drawn = creation.empty(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + drawn.cauchy_() * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -math.log(math.pi) - self.scale.log() - ((value - self.loc) / self.scale).square().log1p()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()
