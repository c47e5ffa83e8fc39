"""`Dirichlet`."""

from __future__ import annotations

from typing import Any

from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.exp_family import ExponentialFamily
from flambeau.distributions.gamma import Gamma
from flambeau.nn.functional import one_hot
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


class Dirichlet(ExponentialFamily):
    """Probabilities of outcomes, along the last dimension; the larger a concentration, the likelier its outcome."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Dirichlet:
        shape = Size(batch_shape) + self._event_shape
        return self._expand_parts(batch_shape, _instance, concentration=self.concentration.expand(shape))

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        """Return where no concentration is 1 or more, a corner: that of the first."""
        above: Any = (self.concentration - 1).clamp(min=0.0)
        whole = above / above.sum(-1, True)
        corner = one_hot(whole.argmax(-1), above.shape[-1]).to(whole.dtype)
        return functions["where"]((self.concentration < 1).all(-1, True), corner, whole)  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw numbers of Gamma distributions and divide them by their sum."""
        drawn = Gamma(self.concentration, 1.0, validate_args=False).rsample(sample_shape)
        return (drawn / drawn.sum(-1, True)).clamp(min=finfo(drawn.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        a = self.concentration
        return (a - 1.0).xlogy(value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, total = self.concentration, self.concentration.sum(-1)
        outcomes = a.shape[-1]
        volume = a.lgamma().sum(-1) - total.lgamma()
        return volume - (outcomes - total) * total.digamma() - ((a - 1.0) * a.digamma()).sum(-1)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration,)

    def _log_normalizer(self, x: Any) -> Tensor:
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()  # type: ignore[no-any-return]
