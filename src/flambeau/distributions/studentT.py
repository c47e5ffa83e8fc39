"""`StudentT`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.chi2 import Chi2
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.normal import standard_normal
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


class StudentT(Distribution):
    """Student's t distribution with `df` degrees of freedom, shifted by `loc` and scaled by `scale`."""

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df)
        super().__init__(self.df.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> StudentT:
        shape = Size(batch_shape)
        parts = self._grown_parts(shape, "df", "loc", "scale", "_chi2")
        return self._expand_parts(shape, _instance, **parts)

    @property
    def mean(self) -> Tensor:
        """Return the mean, which is NaN for at most 1 degree of freedom."""
        return self.loc.masked_fill(self.df <= 1, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Return the variance: NaN for at most 1 degree of freedom, infinite for at most 2."""
        finite: Any = self.df > 2
        some = functions["where"](finite, self.df, 3.0)
        found = (self.scale.square() * some / (some - 2)).masked_fill(~finite, math.inf)
        return found.masked_fill(self.df <= 1, math.nan)  # type: ignore[no-any-return]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        normal = standard_normal(self._extended_shape(sample_shape), self.df)
        return self.loc + self.scale * normal * (self._chi2.rsample(sample_shape) / self.df).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        away = (value - self.loc) / self.scale
        whole = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi) + self._log_ratio()
        return -0.5 * (self.df + 1.0) * (away.square() / self.df).log1p() - whole

    def _log_ratio(self) -> Tensor:
        return (0.5 * self.df).lgamma() - (0.5 * (self.df + 1.0)).lgamma()

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        volume = self._log_ratio() + math.lgamma(0.5)
        return self.scale.log() + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log() + volume
