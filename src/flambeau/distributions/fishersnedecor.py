"""`FisherSnedecor`."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.gamma import Gamma
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.tensor import Tensor


class FisherSnedecor(Distribution):
    """The F distribution: a ratio of two chi-squared numbers, each divided by its degrees of freedom."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1 = Gamma(self.df1 * 0.5, self.df1)
        self._gamma2 = Gamma(self.df2 * 0.5, self.df2)
        both = isinstance(df1, Number) and isinstance(df2, Number)
        super().__init__(() if both else self.df1.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> FisherSnedecor:
        shape = Size(batch_shape)
        return self._expand_parts(
            shape, _instance, **self._grown_parts(shape, "df1", "df2", "_gamma1", "_gamma2")
        )

    @property
    def mean(self) -> Tensor:
        """Return the mean, which is NaN if the denominator has at most 2 degrees of freedom."""
        df2 = self.df2.masked_fill(self.df2 <= 2, math.nan)
        return df2 / (df2 - 2)

    @property
    def mode(self) -> Tensor:
        """Return the mode, which is NaN if the numerator has at most 2 degrees of freedom."""
        first = ((self.df1 - 2) / self.df1).masked_fill(self.df1 <= 2, math.nan)
        return first * self.df2 / (self.df2 + 2)

    @property
    def variance(self) -> Tensor:
        """Return the variance, which is NaN if the denominator has at most 4 degrees of freedom."""
        df2 = self.df2.masked_fill(self.df2 <= 4, math.nan)
        return 2 * df2.square() * (self.df1 + df2 - 2) / (self.df1 * (df2 - 2).square() * (df2 - 4))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = Size(sample_shape)
        first, second = self._gamma1.rsample(shape), self._gamma2.rsample(shape)
        tiny = finfo(second.dtype).tiny
        return (first / second.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        a, b, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        volume = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return volume + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
