"""`Multinomial`."""

from __future__ import annotations

from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.binomial import Binomial
from flambeau.distributions.categorical import Categorical
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


class Multinomial(Distribution):
    """Counts of the outcomes of `total_count` draws from a categorical distribution."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs=probs, logits=logits)
        self._binomial = Binomial(total_count=total_count, probs=self.probs)
        super().__init__(
            self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=validate_args
        )

    def expand(self, batch_shape: Any, _instance: Any = None) -> Multinomial:
        parts = {"total_count": self.total_count, "_categorical": self._categorical.expand(batch_shape)}
        binomial = Binomial(self.total_count, probs=parts["_categorical"].probs, validate_args=False)  # type: ignore[attr-defined]
        return self._expand_parts(batch_shape, _instance, _binomial=binomial, **parts)

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.probs.new(*args, **kwargs)  # type: ignore[no-any-return]

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    @property
    def logits(self) -> Tensor:
        return self._categorical.logits

    @property
    def probs(self) -> Tensor:
        return self._categorical.probs

    @property
    def param_shape(self) -> Size:
        return self._categorical.param_shape

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = Size(sample_shape)
        with no_grad():
            drawn = self._categorical.sample(Size((self.total_count,)) + shape)
            last = drawn.dim()
            drawn = drawn.permute(*range(1, last), 0)
            counts = self.probs.new_zeros(self._extended_shape(shape))
            return counts.scatter_add(-1, drawn, functions["ones_like"](drawn).type_as(counts))  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        logits = logits.masked_fill((value == 0) & (logits == -float("inf")), 0)
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return ways + (logits * value).sum(-1)

    def entropy(self) -> Tensor:
        n = functions["as_tensor"](float(self.total_count), dtype=self.probs.dtype, device=self.probs.device)
        support = self._binomial.enumerate_support(expand=False)[1:]
        chances = self._binomial.log_prob(support).exp()
        repeated = (chances * (support + 1).lgamma()).sum([0, -1])
        return n * self._categorical.entropy() - (n + 1).lgamma() + repeated  # type: ignore[no-any-return]
