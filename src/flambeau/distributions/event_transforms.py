"""Transforms of vectors and matrices, and transforms that are made of others; public as `transforms`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.scalar_transforms import Transform
from flambeau.distributions.utils import sum_rightmost, tril_matrix_to_vec, vec_to_tril_matrix
from flambeau.nn.functional import logsigmoid, pad, softplus
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation, linalg
from flambeau.tensor.tensor import Tensor


class _OfOneClass(Transform):
    """A transform without parameters: two of one class are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    __hash__ = Transform.__hash__


class SoftmaxTransform(_OfOneClass):
    """The transform y = softmax(x) along the last dimension. Its inverse is log(y), one of many."""

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        shifted = (x - x.max(-1, True)[0]).exp()
        return shifted / shifted.sum(-1, True)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def forward_shape(self, shape: Any) -> Any:
        return _check_dims(shape, 1)

    def inverse_shape(self, shape: Any) -> Any:
        return _check_dims(shape, 1)


class StickBreakingTransform(_OfOneClass):
    """A bijection from n real numbers to n + 1 probabilities: each number breaks a part off the rest of a stick."""

    bijective = True
    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        parts = (x - self._offsets(x)).sigmoid()
        rest = (1 - parts).cumprod(-1)
        return pad(parts, [0, 1], value=1) * pad(rest, [1, 0], value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        inner = y[..., :-1]
        rest = (1 - inner.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        return inner.log() - rest.log() + self._offsets(inner)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        shifted = x - self._offsets(x)
        return (-shifted + logsigmoid(shifted) + y[..., :-1].log()).sum(-1)

    @staticmethod
    def _offsets(x: Tensor) -> Tensor:
        """Return numbers for which equal inputs give equal probabilities."""
        n = x.shape[-1]
        return functions["arange"](n, 0, -1, dtype=x.dtype, device=x.device).log()  # type: ignore[no-any-return]

    def forward_shape(self, shape: Any) -> Any:
        _check_dims(shape, 1)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: Any) -> Any:
        _check_dims(shape, 1)
        return Size((*shape[:-1], shape[-1] - 1))


class LowerCholeskyTransform(_OfOneClass):
    """A map from square matrices to lower triangular matrices with positive diagonals."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(_OfOneClass):
    """A map from square matrices to positive definite matrices."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(linalg.linalg_cholesky(y))


class CorrCholeskyTransform(Transform):
    """A bijection from n (n - 1) / 2 numbers to the lower Cholesky factor of a correlation matrix of n variables.

    tanh of the numbers are canonical partial correlations; each row of the factor has norm 1.
    """

    bijective = True
    domain, codomain = constraints.real_vector, constraints.corr_cholesky

    def _call(self, x: Tensor) -> Tensor:
        eps = finfo(x.dtype).eps
        partial = vec_to_tril_matrix(x.tanh().clamp(min=-1 + eps, max=1 - eps), diag=-1)
        rest = (1 - partial.square()).sqrt().cumprod(-1)
        ones = creation.eye(partial.shape[-1], dtype=x.dtype, device=x.device)
        return (partial + ones) * pad(rest[..., :-1], [1, 0], value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        rest = 1 - y.square().cumsum(-1)
        before = pad(rest[..., :-1], [1, 0], value=1)
        partial = tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(before, diag=-1).sqrt()
        return partial.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        rest = tril_matrix_to_vec(1 - y.square().cumsum(-1), diag=-2)
        slopes = -2 * (x + softplus(-2 * x) - 0.6931471805599453).sum(-1)
        return 0.5 * rest.log().sum(-1) + slopes

    def forward_shape(self, shape: Any) -> Any:
        _check_dims(shape, 1)
        entries = shape[-1]
        n = round((0.25 + 2 * entries) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != entries:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return Size((*shape[:-1], n, n))

    def inverse_shape(self, shape: Any) -> Any:
        _check_dims(shape, 2)
        if shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        n = shape[-1]
        return Size((*shape[:-2], n * (n - 1) // 2))


class IndependentTransform(Transform):
    """A transform whose last `reinterpreted_batch_ndims` batch dimensions belong to the event."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return IndependentTransform(
            self.base_transform, self.reinterpreted_batch_ndims, cache_size=cache_size
        )

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> Any:  # type: ignore[override]
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        if x.dim() < self.domain.event_dim:
            raise ValueError("Too few dimensions on input")
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        if y.dim() < self.codomain.event_dim:
            raise ValueError("Too few dimensions on input")
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        slopes = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_rightmost(slopes, self.reinterpreted_batch_ndims)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"

    def forward_shape(self, shape: Any) -> Any:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """A view of the last dimensions, of shape `in_shape`, as `out_shape`."""

    bijective = True

    def __init__(self, in_shape: Any, out_shape: Any, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size=cache_size)

    @constraints.dependent_property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.out_shape))

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return ReshapeTransform(self.in_shape, self.out_shape, cache_size=cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[: x.dim() - len(self.in_shape)] + self.out_shape)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(y.shape[: y.dim() - len(self.out_shape)] + self.in_shape)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.shape[: x.dim() - len(self.in_shape)])

    def forward_shape(self, shape: Any) -> Any:
        return _replace_end(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Any) -> Any:
        return _replace_end(shape, self.out_shape, self.in_shape)


class _PartTransform(Transform):
    """Transforms of the parts of a tensor along one dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        if not all(isinstance(t, Transform) for t in tseq):
            raise AssertionError("All elements of tseq must be Transform instances")
        if cache_size:
            tseq = [t.with_cache(cache_size) for t in tseq]
        super().__init__(cache_size=cache_size)
        self.transforms, self.dim = list(tseq), dim

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(t.bijective for t in self.transforms)

    def _check(self, x: Tensor) -> None:
        if not -x.dim() <= self.dim < x.dim():
            raise AssertionError(f"dim {self.dim} out of range for tensor with {x.dim()} dimensions")


class CatTransform(_PartTransform):
    """Transforms of the parts of a tensor that lie one after another along a dimension.

    Attributes:
        transforms: One transform for each part.
        lengths: Sizes of the parts.
        dim: The dimension.
    """

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ) -> None:  # fmt: skip
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise AssertionError(f"lengths ({len(self.lengths)}) must match tseq ({len(self.transforms)})")

    @property
    def event_dim(self) -> int:
        return max(t.event_dim for t in self.transforms)

    @property
    def length(self) -> int:
        """Return the sum of the sizes of all parts."""
        return sum(self.lengths)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    def _parts(self, x: Tensor) -> list[Tensor]:
        self._check(x)
        if x.size(self.dim) != self.length:
            raise AssertionError(f"x.size({self.dim}) must equal {self.length}, got {x.size(self.dim)}")
        starts = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        return [x.narrow(self.dim, start, n) for start, n in zip(starts, self.lengths, strict=True)]

    def _call(self, x: Tensor) -> Tensor:
        values = [t(part) for t, part in zip(self.transforms, self._parts(x), strict=True)]
        return functions["cat"](values, self.dim)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        values = [t.inv(part) for t, part in zip(self.transforms, self._parts(y), strict=True)]
        return functions["cat"](values, self.dim)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        slopes = []
        for t, a, b in zip(self.transforms, self._parts(x), self._parts(y), strict=True):
            slope = t.log_abs_det_jacobian(a, b)
            slopes.append(sum_rightmost(slope, self.event_dim - t.domain.event_dim))
        dim = self.dim - x.dim() if self.dim >= 0 else self.dim
        dim += self.event_dim
        if dim < 0:
            return functions["cat"](slopes, dim)  # type: ignore[no-any-return]
        return sum(slopes)  # type: ignore[return-value]

    @constraints.dependent_property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)


class StackTransform(_PartTransform):
    """Transforms of the slices of a tensor along a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return StackTransform(self.transforms, self.dim, cache_size)

    def _parts(self, z: Tensor) -> list[Tensor]:
        self._check(z)
        if z.size(self.dim) != len(self.transforms):
            raise AssertionError(
                f"x.size({self.dim}) must equal {len(self.transforms)}, got {z.size(self.dim)}"
            )
        return [z.select(self.dim, i) for i in range(z.size(self.dim))]

    def _call(self, x: Tensor) -> Tensor:
        values = [t(part) for t, part in zip(self.transforms, self._parts(x), strict=True)]
        return functions["stack"](values, self.dim)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        values = [t.inv(part) for t, part in zip(self.transforms, self._parts(y), strict=True)]
        return functions["stack"](values, self.dim)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        return functions["stack"]([t.log_abs_det_jacobian(a, b) for t, a, b in parts], self.dim)  # type: ignore[no-any-return]

    @constraints.dependent_property
    def domain(self) -> Any:  # type: ignore[override]
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> Any:  # type: ignore[override]
        return constraints.stack([t.codomain for t in self.transforms], self.dim)


class CumulativeDistributionTransform(Transform):
    """The transform to y = the cumulative distribution function of a distribution at x."""

    bijective = True
    codomain, sign = constraints.unit_interval, 1

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return self.distribution.support

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return CumulativeDistributionTransform(self.distribution, cache_size=cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)


def _check_dims(shape: Any, dims: int) -> Any:
    if len(shape) < dims:
        raise ValueError("Too few dimensions on input")
    return shape


def _replace_end(shape: Any, old: Size, new: Size) -> Size:
    """Return a shape whose last dimensions `old` are replaced.

    Raises:
        ValueError: If the shape does not end so.
    """
    shape = Size(_check_dims(shape, len(old)))
    cut = len(shape) - len(old)
    if shape[cut:] != old:
        raise ValueError(f"Shape mismatch: expected {shape[cut:]} but got {old}")
    return shape[:cut] + new
