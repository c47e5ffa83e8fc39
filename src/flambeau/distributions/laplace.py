"""`Laplace`."""

from __future__ import annotations

from typing import Any

from flambeau.core.typeinfo import finfo
from flambeau.distributions.families import LocationScale
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class Laplace(LocationScale):
    """The Laplace distribution with mean `loc` and this scale."""

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    @property
    def stddev(self) -> Tensor:
        return 2**0.5 * self.scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return samples by the distribution's inverse, from numbers in (-1, 1)."""
        shape = self._extended_shape(sample_shape)
        drawn = creation.empty(shape, dtype=self.loc.dtype, device=self.loc.device)
        u = drawn.uniform_(finfo(self.loc.dtype).eps - 1, 1)
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()
