"""`LogitRelaxedBernoulli`, `RelaxedBernoulli`."""

from __future__ import annotations

from typing import Any

from flambeau.distributions import constraints
from flambeau.distributions.families import BinaryOdds, Relaxed
from flambeau.distributions.transforms import SigmoidTransform
from flambeau.distributions.utils import broadcast_all, clamp_probs
from flambeau.tensor.functions.random import rand
from flambeau.tensor.tensor import Tensor


class LogitRelaxedBernoulli(BinaryOdds):
    """The log-odds of a relaxed Bernoulli variable (Maddison et al., 2017)."""

    support = constraints.real
    has_rsample = True

    def __init__(
        self, temperature: Tensor, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def _other_parts(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

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


class RelaxedBernoulli(Relaxed):
    """A Bernoulli variable relaxed to (0, 1): the nearer to 0 the temperature, the nearer to 0 and 1."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval

    def __init__(
        self, temperature: Tensor, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(
            LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args=validate_args
        )
