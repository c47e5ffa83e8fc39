"""`MixtureSameFamily`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.distributions import constraints
from flambeau.distributions.categorical import Categorical
from flambeau.distributions.distribution import Distribution
from flambeau.tensor.tensor import Tensor


class MixtureSameFamily(Distribution):
    """A mixture of the distributions along the last dimension of a batch, chosen by a `Categorical`."""

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self._mixture_distribution, self._component_distribution = (
            mixture_distribution,
            component_distribution,
        )
        self._check(mixture_distribution, component_distribution)
        self._num_component = component_distribution.batch_shape[-1]
        self._event_ndims = len(component_distribution.event_shape)
        batch, event = component_distribution.batch_shape[:-1], component_distribution.event_shape
        super().__init__(batch, event, validate_args=validate_args)

    @staticmethod
    def _check(mixture: Any, component: Any) -> None:
        if not isinstance(mixture, Categorical):
            raise ValueError(
                " The Mixture distribution needs to be an  instance of torch.distributions.Categorical"
            )
        if not isinstance(component, Distribution):
            raise ValueError(
                "The Component distribution need to be an instance of torch.distributions.Distribution"
            )
        outer, inner = mixture.batch_shape, component.batch_shape[:-1]
        for i, j in zip(reversed(outer), reversed(inner), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    f"`mixture_distribution.batch_shape` ({outer}) is not compatible with "
                    f"`component_distribution.batch_shape`({inner})"
                )
        choices, count = mixture.logits.shape[-1], component.batch_shape[-1]
        if choices != count:
            raise ValueError(
                f"`mixture_distribution component` ({choices}) does not equal `component_distribution.batch_shape[-1]` "
                f"({count})"
            )

    def expand(self, batch_shape: Any, _instance: Any = None) -> MixtureSameFamily:
        parts = {
            "_component_distribution": self._component_distribution.expand(
                (*batch_shape, self._num_component)
            ),
            "_mixture_distribution": self._mixture_distribution.expand(batch_shape),
            "_num_component": self._num_component,
            "_event_ndims": self._event_ndims,
        }
        return self._expand_parts(batch_shape, _instance, **parts)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        return self._component_distribution

    @property
    def mean(self) -> Tensor:
        return (self._shares() * self.component_distribution.mean).sum(-1 - self._event_ndims)

    @property
    def variance(self) -> Tensor:
        """Return the mean of the components' variances plus the variance of their means."""
        shares, parts, dim = self._shares(), self.component_distribution, -1 - self._event_ndims
        inner = (shares * parts.variance).sum(dim)
        away = parts.mean - self.mean.unsqueeze(dim)
        return inner + (shares * away.square()).sum(dim)

    def _shares(self) -> Tensor:
        probs = self.mixture_distribution.probs
        return probs.reshape((*probs.shape, *[1] * self._event_ndims))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inner = self.component_distribution.log_prob(value.unsqueeze(-1 - self._event_ndims))
        return (inner + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def cdf(self, value: Tensor) -> Tensor:
        inner = self.component_distribution.cdf(value.unsqueeze(-1 - self._event_ndims))
        return (inner * self.mixture_distribution.probs).sum(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            dim = len(sample_shape) + len(self._batch_shape)
            chosen = self.mixture_distribution.sample(sample_shape)
            drawn = self.component_distribution.sample(sample_shape)
            places = chosen.reshape((*chosen.shape, *[1] * (self._event_ndims + 1)))
            places = places.expand((*chosen.shape, 1, *self._event_shape))
            return drawn.gather(dim, places).squeeze(dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"
