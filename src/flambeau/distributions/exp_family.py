"""`ExponentialFamily`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd import grad
from flambeau.autograd.grad_mode import enable_grad
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import sum_rightmost
from flambeau.tensor.tensor import Tensor


class ExponentialFamily(Distribution):
    """A distribution whose density is exp(<t(x), natural parameters> - log normalizer + k(x)).

    A subclass defines `_natural_params`, `_log_normalizer` and `_mean_carrier_measure`, from which the entropy and the
    divergence between two members of one family follow.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _log_normalizer(self, *natural_params: Any) -> Tensor:
        """Return the logarithm of the normalizer of natural parameters."""
        raise NotImplementedError

    @property
    def _mean_carrier_measure(self) -> float:
        """Return the mean of k(x)."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Return the entropy, from the derivative of the log normalizer."""
        result: Any = -self._mean_carrier_measure
        parameters, normalizer, means = differentiate_normalizer(self)
        result = result + normalizer
        for parameter, mean in zip(parameters, means, strict=True):
            result = result - sum_events(self, parameter * mean)
        return result  # type: ignore[no-any-return]


def differentiate_normalizer(family: ExponentialFamily) -> tuple[list[Any], Any, Any]:
    """Return natural parameters that are leaves, the log normalizer and its derivatives by them."""
    with enable_grad():
        parameters = [p.detach().requires_grad_() for p in family._natural_params]
        normalizer = family._log_normalizer(*parameters)
        means = grad(normalizer.sum(), parameters, create_graph=True)
    return parameters, normalizer, means


def sum_events(family: Distribution, value: Any) -> Any:
    """Return the sum of a natural parameter's terms over all dimensions except those of the batch."""
    return sum_rightmost(value, value.dim() - len(family.batch_shape))
