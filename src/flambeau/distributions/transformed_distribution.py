"""`TransformedDistribution`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.independent import Independent
from flambeau.distributions.transforms import ComposeTransform, Transform
from flambeau.distributions.utils import sum_rightmost
from flambeau.tensor.tensor import Tensor


class TransformedDistribution(Distribution):
    """A distribution whose values are transformed by `transforms` in order."""

    arg_constraints: Any = {}

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.transforms = _list_transforms(transforms)
        whole = self._whole
        shape = base_distribution.batch_shape + base_distribution.event_shape
        if len(shape) < whole.domain.event_dim:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {whole.domain.event_dim}, but got {shape}."
            )
        events = len(base_distribution.event_shape)
        following = whole.forward_shape(shape)
        grown = Size(whole.inverse_shape(following))
        base = base_distribution if grown == shape else base_distribution.expand(grown[: len(grown) - events])
        missing = whole.domain.event_dim - events
        self.base_dist = Independent(base, missing) if missing > 0 else base
        cut = len(following) - whole.codomain.event_dim - max(-missing, 0)
        super().__init__(following[:cut], following[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TransformedDistribution:
        shape = self._whole.inverse_shape(Size(batch_shape) + self._event_shape)
        base = self.base_dist.expand(shape[: len(shape) - len(self.base_dist.event_shape)])
        return self._expand_parts(batch_shape, _instance, transforms=self.transforms, base_dist=base)

    @property
    def _whole(self) -> ComposeTransform:
        return ComposeTransform(self.transforms)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return bool(self.base_dist.has_rsample)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        missing = len(self._event_shape) - found.event_dim
        return constraints.independent(found, missing) if missing > 0 else found

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self._whole(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._whole(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the base distribution minus the logarithms of the transforms' slopes."""
        if self._validate_args:
            self._validate_sample(value)
        dims = len(self._event_shape)
        total: Any = 0.0
        y = value
        for transform in reversed(self.transforms):
            x = transform._inv_call(y)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            slope = transform.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(slope, dims - transform.domain.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return total + sum_rightmost(base, dims - len(self.base_dist.event_shape))  # type: ignore[no-any-return]

    def _flip_order(self, value: Tensor) -> Tensor:
        """Return a probability, or its complement if the transforms reverse the order."""
        sign = self._whole.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5  # type: ignore[no-any-return]

    def cdf(self, value: Tensor) -> Tensor:
        value = self._whole._inv_call(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._flip_order(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._whole(self.base_dist.icdf(self._flip_order(value)))


def _list_transforms(transforms: Any) -> list[Transform]:
    if isinstance(transforms, Transform):
        return [transforms]
    if not isinstance(transforms, list) or not all(isinstance(t, Transform) for t in transforms):
        raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
    return transforms
