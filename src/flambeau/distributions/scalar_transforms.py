"""`Transform`, and transforms of single numbers; public as `torch.distributions.transforms`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.core.layout import broadcast_shapes
from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.utils import broadcast_all, sum_rightmost
from flambeau.nn.functional import softplus
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class Transform:
    """A bijection from `domain` to `codomain`. `cache_size=1` keeps the last pair, so that its inverse is exact.

    A subclass defines `_call(x)`, `_inverse(y)` and `log_abs_det_jacobian(x, y)`.
    """

    bijective: Any = False
    domain: Any
    codomain: Any

    def __init__(self, cache_size: int = 0) -> None:
        self._cache_size = cache_size
        self._cached_x_y: tuple[Any, Any] = (None, None)
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        super().__init__()  # a subclass may have other bases, such as Module

    @property
    def event_dim(self) -> int:
        """Return the number of last dimensions that are one event.

        Raises:
            ValueError: If the number of dimensions differs between domain and codomain.
        """
        if self.domain.event_dim == self.codomain.event_dim:
            return int(self.domain.event_dim)
        raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")

    def forward_shape(self, shape: Any) -> Any:
        """Return the shape of the result for an input's shape."""
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        """Return the shape of the input for a result's shape."""
        return shape

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value at x."""
        if x is self._cached_x_y[0]:
            return self._cached_x_y[1]  # type: ignore[no-any-return]
        return self._store_pair(x, self._call(x))[1]

    def _inv_call(self, y: Tensor) -> Tensor:
        """Return the x whose value is y."""
        if y is self._cached_x_y[1]:
            return self._cached_x_y[0]  # type: ignore[no-any-return]
        return self._store_pair(self._inverse(y), y)[0]

    def _store_pair(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self._cache_size:
            self._cached_x_y = x, y
        return x, y

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |dy/dx|, summed over the dimensions of an event."""
        raise NotImplementedError

    @property
    def inv(self) -> Transform:
        """Return the inverse."""
        return _InverseTransform(self)

    @property
    def sign(self) -> Any:
        """Return 1 if the transform is increasing, -1 if it is decreasing."""
        raise NotImplementedError

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        raise NotImplementedError(f"{type(self)}.with_cache is not implemented")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _InverseTransform(Transform):
    """The inverse of a transform."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._inv = transform

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return self._inv.codomain

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return self._inv.domain

    @property
    def bijective(self) -> Any:  # type: ignore[override]
        return self._inv.bijective

    @property
    def inv(self) -> Transform:
        return self._inv

    def forward_shape(self, shape: Any) -> Any:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self._inv.forward_shape(shape)

    @property
    def sign(self) -> Any:
        return self._inv.sign

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._inv.with_cache(cache_size).inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._inv._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._inv.log_abs_det_jacobian(y, x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._inv == other._inv

    __hash__ = Transform.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inv!r})"


class ComposeTransform(Transform):
    """A composition of several transforms, which are applied from the first to the last."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    @property
    def domain(self) -> Any:  # type: ignore[override]
        if not self.parts:
            return constraints.real
        dims = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            dims = max(dims + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return _extend(self.parts[0].domain, dims)

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        if not self.parts:
            return constraints.real
        dims = self.parts[0].domain.event_dim
        for part in self.parts:
            dims = max(dims + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return _extend(self.parts[-1].codomain, dims)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(part.bijective for part in self.parts)

    def forward_shape(self, shape: Any) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    @property
    def inv(self) -> Transform:
        return ComposeTransform([part.inv for part in reversed(self.parts)])

    @property
    def sign(self) -> Any:
        sign: Any = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size=cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return creation.zeros_like(x)
        total: Any = 0.0
        dims = self.domain.event_dim
        for index, part in enumerate(self.parts):
            following = y if index == len(self.parts) - 1 else part(x)
            slopes = part.log_abs_det_jacobian(x, following)
            total = total + sum_rightmost(slopes, dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
            x = following
        return total  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = Transform.__hash__

    def __repr__(self) -> str:
        parts = ",\n    ".join(repr(part) for part in self.parts)
        return f"{type(self).__name__}(\n    {parts}\n)"


def _extend(constraint: Any, dims: int) -> Any:
    """Return a constraint of events with at least `dims` dimensions."""
    missing = dims - constraint.event_dim
    return constraints.independent(constraint, missing) if missing > 0 else constraint


class AbsTransform(Transform):
    """The transform y = abs(x), which has no inverse; `inv` returns y, as in PyTorch."""

    domain, codomain = constraints.real, constraints.positive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbsTransform)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class ExpTransform(Transform):
    """The transform y = exp(x)."""

    bijective = True
    domain, codomain, sign = constraints.real, constraints.positive, 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExpTransform)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


def _clipped_sigmoid(x: Tensor) -> Tensor:
    return _clip_open(x.sigmoid())


def _clip_open(y: Tensor) -> Tensor:
    """Return y clipped to the smallest and the largest value of its dtype between 0 and 1."""
    limits = finfo(y.dtype)
    return y.clamp(min=limits.tiny, max=1 - limits.eps)


class SigmoidTransform(Transform):
    """The transform y = 1 / (1 + exp(-x))."""

    bijective = True
    domain, codomain, sign = constraints.real, constraints.unit_interval, 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SigmoidTransform)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return _clipped_sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        y = _clip_open(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class TanhTransform(Transform):
    """The transform y = tanh(x). Use `cache_size=1`: the inverse of a y that was rounded to 1 is infinite."""

    bijective = True
    domain, codomain, sign = constraints.real, constraints.interval(-1.0, 1.0), 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TanhTransform)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log(1 - tanh(x)^2) in a form that does not cancel."""
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class AffineTransform(Transform):
    """The transform y = loc + scale * x; the last `event_dim` dimensions are one event."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    bijective = True

    @property
    def event_dim(self) -> int:
        return self._event_dim

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:  # type: ignore[override]
        return _extend(constraints.real, self.event_dim)

    codomain = domain  # type: ignore[assignment]

    def forward_shape(self, shape: Any) -> Any:
        return _broadcast(shape, self.loc, self.scale)

    inverse_shape = forward_shape

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, (int, float)):
            return (self.scale > 0) - (self.scale < 0)
        return self.scale.sign()

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return AffineTransform(self.loc, self.scale, self.event_dim, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineTransform):
            return False
        return all(
            bool((a == b).all() if isinstance(a, Tensor) or isinstance(b, Tensor) else a == b)
            for a, b in ((self.loc, other.loc), (self.scale, other.scale))
        )

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, (int, float)):
            slopes = creation.full_like(x, math.log(abs(self.scale)))
        else:
            slopes = broadcast_all(self.scale.abs().log(), x)[0]
        return sum_rightmost(slopes, self.event_dim)


def _broadcast(shape: Any, *values: Any) -> Size:
    """Return the shape of an event's values together with parameters that may be numbers."""
    return Size(broadcast_shapes([tuple(shape), *[getattr(value, "shape", ()) for value in values]]))


class PowerTransform(Transform):
    """The transform y = x ** exponent, for positive numbers."""

    bijective = True
    domain = codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        (self.exponent,) = broadcast_all(exponent)

    @property
    def sign(self) -> Any:
        return self.exponent.sign()

    def with_cache(self, cache_size: int = 1) -> Transform:
        return (
            self if self._cache_size == cache_size else PowerTransform(self.exponent, cache_size=cache_size)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool(self.exponent.eq(other.exponent).all())

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Any) -> Any:
        return _broadcast(shape, self.exponent)

    inverse_shape = forward_shape


class SoftplusTransform(Transform):
    """The transform y = log(1 + exp(x)), which is x where x is above 20."""

    bijective = True
    domain, codomain, sign = constraints.real, constraints.positive, 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoftplusTransform)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


identity_transform = ComposeTransform([])
