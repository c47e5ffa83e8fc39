"""`MultivariateNormal`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.layout import broadcast_shapes
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution as Distribution  # botorch imports it from here
from flambeau.distributions.families import FromFactor
from flambeau.distributions.normal import standard_normal
from flambeau.tensor.functions import creation, linalg
from flambeau.tensor.tensor import Tensor


class MultivariateNormal(FromFactor):
    """The normal distribution over vectors, with mean `loc`, (..., n).

    Exactly one of the other parameters, (..., n, n), must be present.

    Args:
        covariance_matrix: The covariance.
        precision_matrix: Its inverse.
        scale_tril: Its lower Cholesky factor, with which all methods compute.
    """

    arg_constraints = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite, "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        matrices = {
            "covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril,
        }  # fmt: skip
        given = {name: matrix for name, matrix in matrices.items() if matrix is not None}
        if len(given) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
            )
        ((name, matrix),) = given.items()
        if matrix.dim() < 2:
            raise ValueError(
                f"{name} must be at least two-dimensional, with optional leading batch dimensions"
            )
        batch = broadcast_shapes([matrix.shape[:-2], loc.shape[:-1]])
        self.__dict__[name] = matrix.expand((*batch, -1, -1))
        self.loc = loc.expand((*batch, -1))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = _factor(name, matrix)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MultivariateNormal:
        (n,) = self._event_shape
        parts = {"loc": self.loc.expand((*batch_shape, n))}
        parts |= self._grown_parts(
            (*batch_shape, n, n), "covariance_matrix", "precision_matrix", "scale_tril"
        )
        factor = self._unbroadcasted_scale_tril
        return self._expand_parts(batch_shape, _instance, _unbroadcasted_scale_tril=factor, **parts)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        squares = self._unbroadcasted_scale_tril.square().sum(-1)
        return squares.expand((*self._batch_shape, *self._event_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = standard_normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + (self._unbroadcasted_scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        distance = mahalanobis(self._unbroadcasted_scale_tril, value - self.loc)
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + distance) - log_determinant(self._unbroadcasted_scale_tril)

    def entropy(self) -> Tensor:
        constant = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return (constant + log_determinant(self._unbroadcasted_scale_tril)).expand(self._batch_shape)


def _factor(name: str, matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor of the covariance matrix."""
    if name == "scale_tril":
        return matrix
    if name == "covariance_matrix":
        return linalg.linalg_cholesky(matrix)
    return _precision_to_scale_tril(matrix)


# PyTorch's private names; laplace-torch and others import them.
def _precision_to_scale_tril(P: Tensor) -> Tensor:  # noqa: N803
    """Return the lower Cholesky factor of the inverse of a precision matrix."""
    # The inverse of P = U U^T with U upper triangular is U^-T U^-1, and U is the lower factor of P turned around.
    turned = linalg.linalg_cholesky(P.flip((-2, -1))).flip((-2, -1)).mT
    eye = creation.eye(P.shape[-1], dtype=P.dtype, device=P.device)
    return linalg.solve_triangular(turned, eye, upper=False)


def _batch_mv(bmat: Tensor, bvec: Tensor) -> Tensor:
    """Return the product of matrices and vectors, in batches."""
    return (bmat @ bvec.unsqueeze(-1)).squeeze(-1)


def _batch_mahalanobis(bL: Tensor, bx: Tensor) -> Tensor:  # noqa: N803
    """Return the squared Mahalanobis distance of `bx` for the Cholesky factor `bL`."""
    return mahalanobis(bL, bx)


def log_determinant(factor: Tensor) -> Tensor:
    """Return half the logarithm of the determinant of the covariance matrix, of its Cholesky factor."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def mahalanobis(factor: Tensor, away: Tensor) -> Tensor:
    """Return the squared Mahalanobis norms of vectors (..., n) for lower Cholesky factors (..., n, n)."""
    shape = broadcast_shapes([factor.shape[:-2], away.shape[:-1]])
    n = away.shape[-1]
    vectors = away.expand((*shape, n)).unsqueeze(-1)
    solved = linalg.solve_triangular(factor.expand((*shape, n, n)), vectors, upper=False)
    return solved.square().sum((-2, -1))
