"""`ExpRelaxedCategorical`, `RelaxedOneHotCategorical`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.categorical import Categorical
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.families import Relaxed
from flambeau.distributions.transforms import ExpTransform
from flambeau.distributions.utils import broadcast_all, clamp_probs
from flambeau.tensor.functions.random import rand
from flambeau.tensor.tensor import Tensor


class ExpRelaxedCategorical(Distribution):
    """The logarithms of a relaxed one-hot variable (Maddison et al., 2017)."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector  # the logarithms of a simplex: a part of it
    has_rsample = True

    def __init__(
        self, temperature: Tensor, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._categorical = Categorical(probs, logits)
        self.temperature = temperature
        shape = self._categorical.param_shape
        super().__init__(self._categorical.batch_shape, shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ExpRelaxedCategorical:
        parts = {"temperature": self.temperature, "_categorical": self._categorical.expand(Size(batch_shape))}
        return self._expand_parts(batch_shape, _instance, **parts)

    @property
    def param_shape(self) -> Size:
        return self._categorical.param_shape

    @property
    def logits(self) -> Tensor:
        return self._categorical.logits

    @property
    def probs(self) -> Tensor:
        return self._categorical.probs

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return samples by Gumbel noise: logits - log(-log(u))."""
        shape = self._extended_shape(sample_shape)
        u = clamp_probs(rand(shape, dtype=self.logits.dtype, device=self.logits.device))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        count = self._event_shape[0]
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        scale = self.temperature.log() * (count - 1) + math.lgamma(count)
        score = logits - value.mul(self.temperature)
        return (score - score.logsumexp(-1, keepdim=True)).sum(-1) + scale


class RelaxedOneHotCategorical(Relaxed):
    """A one-hot variable relaxed to the simplex: the nearer to 0 the temperature, the nearer to one-hot."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex

    def __init__(
        self, temperature: Tensor, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)
