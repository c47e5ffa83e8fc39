"""`Binomial`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.distributions import constraints
from flambeau.distributions.families import BinaryOdds
from flambeau.distributions.rejection import draw_binomial
from flambeau.distributions.utils import broadcast_all, one_of_two
from flambeau.nn.functional import softplus
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


class Binomial(BinaryOdds):
    """The number of successes in `total_count` trials, by the probability `probs` of one or its log-odds `logits`."""

    arg_constraints = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    has_enumerate_support = True
    _grows = ("total_count", *BinaryOdds._grows)

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        one_of_two(probs, logits)
        count, given = broadcast_all(total_count, logits if probs is None else probs)
        self.total_count = count.type_as(given)
        super().__init__(*((None, given) if probs is None else (given, None)), validate_args)

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._param.new(*args, **kwargs)  # type: ignore[no-any-return]

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return functions["minimum"](((self.total_count + 1) * self.probs).floor(), self.total_count)  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return draw_binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n = self.total_count
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * self.logits - n * softplus(self.logits)

    def entropy(self) -> Tensor:
        """Return the entropy, a sum over the support.

        Raises:
            NotImplementedError: If members of the batch differ in their numbers of trials.
        """
        self._single_count("entropy")
        terms = self.log_prob(self.enumerate_support(False))
        return -(terms.exp() * terms).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._single_count("enumerate_support")
        values = functions["arange"](1 + n, dtype=self._param.dtype, device=self._param.device)
        values = values.view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values  # type: ignore[no-any-return]

    def _single_count(self, use: str) -> int:
        n = int(self.total_count.max())
        if not self.total_count.min() == n:
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{use}`.")
        return n
