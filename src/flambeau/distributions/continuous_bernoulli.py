"""`ContinuousBernoulli`.

# Note [Near one half]
The formulas divide by 1 - 2 p or by its logarithm's counterpart, which are 0 at one half. Inside of `lims` they are
evaluated at the lower limit, and the result is replaced by its Taylor series around one half.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.distributions import constraints
from flambeau.distributions.exp_family import ExponentialFamily
from flambeau.distributions.families import BinaryOdds
from flambeau.distributions.utils import clamp_probs
from flambeau.nn.functional import softplus
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.random import rand
from flambeau.tensor.tensor import Tensor


class ContinuousBernoulli(BinaryOdds, ExponentialFamily):
    """A number in [0, 1] whose density is proportional to probs**x * (1 - probs)**(1 - x).

    `lims` is the interval around one half in which the formulas are replaced by Taylor series.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0  # type: ignore[assignment]

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._lims = lims
        super().__init__(probs, logits, validate_args=validate_args)
        if probs is not None:
            self.probs = self._param = clamp_probs(self._param)

    def _other_parts(self) -> dict[str, Any]:
        return {"_lims": self._lims}

    def _where_stable(self, formula: Any, series: Any) -> Tensor:
        """Return a formula of the probability, and a series of its distance from one half near it."""
        stable = (self.probs <= self._lims[0]) | (self.probs > self._lims[1])
        p = functions["where"](stable, self.probs, self._lims[0])
        return functions["where"](stable, formula(p), series(self.probs - 0.5))  # type: ignore[no-any-return]

    def _cont_bern_log_norm(self) -> Tensor:
        """Return the logarithm of the factor that makes the density's integral 1."""

        def formula(p: Any) -> Any:
            return ((-p).log1p() - p.log()).abs().log() - (1 - 2 * p).abs().log()

        return self._where_stable(
            formula, lambda x: math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x.square()) * x.square()
        )

    @property
    def mean(self) -> Tensor:
        return self._where_stable(
            lambda p: p / (2 * p - 1) + 1 / ((-p).log1p() - p.log()),
            lambda x: 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x.square()) * x,
        )

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    @property
    def variance(self) -> Tensor:
        return self._where_stable(
            lambda p: p * (p - 1) / (1 - 2 * p).square() + ((-p).log1p() - p.log()).square().reciprocal(),
            lambda x: 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x.square()) * x.square(),
        )

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self.icdf(self._uniform(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(self._uniform(sample_shape))

    def _uniform(self, sample_shape: Any) -> Tensor:
        drawn: Tensor = rand(
            self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device
        )
        return drawn

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return value * self.logits - softplus(self.logits) + self._cont_bern_log_norm()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inside = self._where_stable(
            lambda p: (p.pow(value) * (1 - p).pow(1 - value) + p - 1) / (2 * p - 1), lambda x: value
        )
        where = functions["where"]
        return where(value <= 0, 0.0, where(value >= 1, 1.0, inside))  # type: ignore[no-any-return]

    def icdf(self, value: Tensor) -> Tensor:
        def formula(p: Any) -> Any:
            less = (-p).log1p()
            return ((-p + value * (2 * p - 1)).log1p() - less) / (p.log() - less)

        return self._where_stable(formula, lambda x: value)

    def entropy(self) -> Tensor:
        less, more = (-self.probs).log1p(), self.probs.log()
        return self.mean * (less - more) - self._cont_bern_log_norm() - less

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, x: Any) -> Tensor:
        stable = (x <= self._odds(0)) | (x > self._odds(1))
        y = functions["where"](stable, x, self._odds(0))
        outside = (y.exp() - 1).abs().log() - y.abs().log()
        series = 0.5 * x + x.square() / 24.0 - x.pow(4) / 2880.0
        return functions["where"](stable, outside, series)  # type: ignore[no-any-return]

    def _odds(self, end: int) -> float:
        """Return the log-odds of a limit."""
        return math.log(self._lims[end] / (1 - self._lims[end]))
