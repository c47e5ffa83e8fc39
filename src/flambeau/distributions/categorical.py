"""`Categorical`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.dtype import int64
from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import lazy_property, logits_to_probs, one_of_two, probs_to_logits
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.random import multinomial
from flambeau.tensor.tensor import Tensor


class Categorical(Distribution):
    """The distribution over {0, ..., K - 1} with either `probs` or `logits`, (..., K), which are normalized."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        one_of_two(probs, logits)
        given, name = (logits, "logits") if probs is None else (probs, "probs")
        assert given is not None
        if given.dim() < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        if probs is None:
            self.logits = self._param = given - given.logsumexp(-1, keepdim=True)
        else:
            self.probs = self._param = given / given.sum(-1, keepdim=True)
        self._num_events = self._param.shape[-1]
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Categorical:
        parts = self._grown_parts((*batch_shape, self._num_events), "_param", "probs", "logits")
        return self._expand_parts(batch_shape, _instance, _num_events=self._num_events, **parts)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self._num_events - 1)

    @lazy_property
    def logits(self) -> Tensor:
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Tensor:
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> Size:
        return self._param.size()

    @property
    def mean(self) -> Tensor:
        """Return NaN, because categories are not numbers."""
        return self._unknown()

    @property
    def variance(self) -> Tensor:
        return self._unknown()

    def _unknown(self) -> Tensor:
        return self.probs.new_full(self._extended_shape(), float("nan"))

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        count = Size(sample_shape).numel()
        with no_grad():
            drawn = multinomial(self.probs.reshape(-1, self._num_events), count, True)
        return drawn.T.reshape(self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        places, logs = functions["broadcast_tensors"](value.long().unsqueeze(-1), self.logits)
        return logs.gather(-1, places[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        logs = self.logits.clamp(min=finfo(self.logits.dtype).min)  # an impossible value has no share
        return -(logs * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = creation.arange(self._num_events, dtype=int64, device=self._param.device)
        values = values.view((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values
