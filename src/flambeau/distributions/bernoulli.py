"""`Bernoulli`."""

from __future__ import annotations

from numbers import Number
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import (
    broadcast_all,
    lazy_property,
    logits_to_probs,
    one_of_two,
    probs_to_logits,
)
from flambeau.nn.functional import binary_cross_entropy_with_logits
from flambeau.tensor import creation
from flambeau.tensor.random import bernoulli
from flambeau.tensor.tensor import Tensor


class Bernoulli(Distribution):
    """1 with probability `probs` (or log-odds `logits`: one of both is given), else 0."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.boolean
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        one_of_two(probs, logits)
        given = logits if probs is None else probs
        (self._param,) = broadcast_all(given)
        if probs is None:
            self.logits = self._param
        else:
            self.probs = self._param
        super().__init__(() if isinstance(given, Number) else self._param.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Bernoulli:
        names = [name for name in ("_param", "probs", "logits") if name in self.__dict__]
        parts = {name: self.__dict__[name].expand(Size(batch_shape)) for name in names}
        return self._expanded(batch_shape, _instance, **parts)

    @lazy_property
    def logits(self) -> Tensor:
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Size:
        return self._param.size()

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        mode = (self.probs >= 0.5).to(self.probs)
        return mode.masked_fill(self.probs == 0.5, float("nan"))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = creation.arange(2, dtype=self._param.dtype, device=self._param.device)
        values = values.view((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values
