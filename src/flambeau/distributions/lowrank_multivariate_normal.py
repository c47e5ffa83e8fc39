"""`LowRankMultivariateNormal`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.layout import broadcast_shapes
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.multivariate_normal import log_determinant, mahalanobis
from flambeau.distributions.utils import _standard_normal, lazy_property
from flambeau.tensor.functions import creation, linalg
from flambeau.tensor.tensor import Tensor


class LowRankMultivariateNormal(Distribution):
    """The normal distribution over vectors with covariance `cov_factor @ cov_factor.T + diag(cov_diag)`.

    Everything is computed from the capacitance matrix I + W^T D^-1 W, which has the rank of the factor W: the
    Woodbury identity inverts the covariance and the matrix determinant lemma gives its determinant.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        event = loc.shape[-1:]
        if cov_factor.dim() < 2:
            raise ValueError(
                "cov_factor must be at least two-dimensional, with optional leading batch dimensions"
            )
        if cov_factor.shape[-2:-1] != event:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {event[0]} x m")
        if cov_diag.shape[-1:] != event:
            raise ValueError(f"cov_diag must be a batch of vectors with shape {event}")
        try:
            batch = Size(broadcast_shapes([loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1]]))
        except RuntimeError as error:
            raise ValueError(
                f"Incompatible batch shapes: loc {loc.shape}, cov_factor {cov_factor.shape}, cov_diag {cov_diag.shape}"
            ) from error
        self.loc, self.cov_diag = loc.expand((*batch, *event)), cov_diag.expand((*batch, *event))
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag = cov_factor, cov_diag
        self._capacitance_tril = factor_capacitance(cov_factor, cov_diag)
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LowRankMultivariateNormal:
        shape = Size(batch_shape)
        vectors = self._grown_parts((*shape, *self._event_shape), "loc", "cov_diag")
        factor = self.cov_factor.expand((*shape, *self.cov_factor.shape[-2:]))
        return self._expand_parts(
            shape, _instance, cov_factor=factor, _capacitance_tril=self._capacitance_tril,
            _unbroadcasted_cov_factor=self._unbroadcasted_cov_factor,
            _unbroadcasted_cov_diag=self._unbroadcasted_cov_diag, **vectors,
        )  # fmt: skip

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @lazy_property
    def variance(self) -> Tensor:
        squares = self._unbroadcasted_cov_factor.square().sum(-1) + self._unbroadcasted_cov_diag
        return squares.expand((*self._batch_shape, *self._event_shape))

    @lazy_property
    def scale_tril(self) -> Tensor:
        return self._expand_matrix(linalg.linalg_cholesky(self._dense()))

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        return self._expand_matrix(self._dense())

    @lazy_property
    def precision_matrix(self) -> Tensor:
        inverse = self._unbroadcasted_cov_diag.reciprocal()
        scaled = self._unbroadcasted_cov_factor.mT * inverse.unsqueeze(-2)
        solved = linalg.solve_triangular(self._capacitance_tril, scaled, upper=False)
        return self._expand_matrix(inverse.diag_embed() - solved.mT @ solved)

    def _dense(self) -> Tensor:
        factor = self._unbroadcasted_cov_factor
        return factor @ factor.mT + self._unbroadcasted_cov_diag.diag_embed()

    def _expand_matrix(self, matrix: Tensor) -> Tensor:
        return matrix.expand((*self._batch_shape, *self._event_shape, *self._event_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        kind = (self.loc.dtype, self.loc.device)
        common = _standard_normal((*shape[:-1], self.cov_factor.shape[-1]), *kind)
        own = _standard_normal(shape, *kind)
        shared = (self._unbroadcasted_cov_factor @ common.unsqueeze(-1)).squeeze(-1)
        return self.loc + shared + self._unbroadcasted_cov_diag.sqrt() * own

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        factor, diagonal = self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag
        distance = low_rank_mahalanobis(factor, diagonal, value - self.loc, self._capacitance_tril)
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + low_rank_log_determinant(diagonal, self._capacitance_tril) + distance)

    def entropy(self) -> Tensor:
        whole = low_rank_log_determinant(self._unbroadcasted_cov_diag, self._capacitance_tril)
        found = 0.5 * (self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + whole)
        return found.expand(self._batch_shape) if self._batch_shape else found


def factor_capacitance(factor: Tensor, diagonal: Tensor) -> Tensor:
    """Return the lower Cholesky factor of I + W^T D^-1 W."""
    m = factor.shape[-1]
    eye = creation.eye(m, dtype=factor.dtype, device=factor.device)
    return linalg.linalg_cholesky((factor.mT / diagonal.unsqueeze(-2)) @ factor + eye)


def low_rank_log_determinant(diagonal: Tensor, capacitance_tril: Tensor) -> Tensor:
    """Return the logarithm of the determinant of W W^T + D."""
    return 2 * log_determinant(capacitance_tril) + diagonal.log().sum(-1)


def low_rank_mahalanobis(factor: Tensor, diagonal: Tensor, away: Tensor, capacitance_tril: Tensor) -> Tensor:
    """Return squared distances x^T (W W^T + D)^-1 x of vectors."""
    scaled = factor.mT / diagonal.unsqueeze(-2)
    projected = (scaled @ away.unsqueeze(-1)).squeeze(-1)
    return (away.square() / diagonal).sum(-1) - mahalanobis(capacitance_tril, projected)
