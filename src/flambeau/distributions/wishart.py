"""`Wishart`."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from flambeau.core.layout import broadcast_shapes
from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.chi2 import Chi2
from flambeau.distributions.exp_family import ExponentialFamily
from flambeau.distributions.families import FromFactor
from flambeau.distributions.multivariate_normal import log_determinant
from flambeau.distributions.utils import _standard_normal
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import linalg
from flambeau.tensor.tensor import Tensor


class Wishart(FromFactor, ExponentialFamily):
    """The distribution of scatter matrices of `df` normal vectors with mean 0 and a covariance matrix.

    Exactly one of the matrices, (..., n, n), must be present.

    Args:
        covariance_matrix: The covariance.
        precision_matrix: Its inverse.
        scale_tril: Its lower Cholesky factor.
    """

    support = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0  # type: ignore[assignment]

    def __init__(
        self, df: Any, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
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
                "scale_tril must be at least two-dimensional, with optional leading batch dimensions"
            )
        if isinstance(df, Number):
            df = matrix.new_tensor(float(df))  # type: ignore[arg-type]
        batch = Size(broadcast_shapes([matrix.shape[:-2], df.shape]))
        event = matrix.shape[-2:]
        if bool(df.le(event[-1] - 1).any()):
            raise ValueError(f"Value of df={df} expected to be greater than ndim - 1 = {event[-1] - 1}.")
        self.df = df.expand(batch)
        self.__dict__[name] = matrix.expand((*batch, *event))
        self._unbroadcasted_scale_tril = _factor(name, matrix)
        super().__init__(batch, event, validate_args=validate_args)
        self._chi2 = Chi2(self.df.unsqueeze(-1) - self._order(matrix), validate_args=False)

    def _order(self, like: Tensor) -> Tensor:
        return functions["arange"](self._event_shape[-1], dtype=like.dtype, device=like.device)  # type: ignore[no-any-return]

    @property
    def arg_constraints(self) -> dict[str, Any]:
        return {
            "covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky, "df": constraints.greater_than(self._event_shape[-1] - 1),
        }  # fmt: skip

    def expand(self, batch_shape: Any, _instance: Any = None) -> Wishart:
        shape = Size(batch_shape)
        names = ("covariance_matrix", "precision_matrix", "scale_tril")
        parts = self._grown_parts((*shape, *self._event_shape), *names)
        factor = self._unbroadcasted_scale_tril.expand((*shape, *self._event_shape))
        chi2 = self._chi2.expand((*shape, self._event_shape[-1]))
        return self._expand_parts(
            shape, _instance, df=self.df.expand(shape), _unbroadcasted_scale_tril=factor, _chi2=chi2, **parts
        )

    @property
    def mean(self) -> Tensor:
        return self.df.view((*self._batch_shape, 1, 1)) * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        """Return the mode of n x n matrices, which is NaN for less than n + 1 degrees of freedom."""
        factor = (self.df - self.covariance_matrix.shape[-1] - 1).view((*self._batch_shape, 1, 1))
        return factor.masked_fill(factor <= 0, math.nan) * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        v = self.covariance_matrix
        diagonal = v.diagonal(dim1=-2, dim2=-1)
        both = v.square() + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df.view((*self._batch_shape, 1, 1)) * both

    def rsample(self, sample_shape: Any = (), max_try_correction: int | None = None) -> Tensor:
        """Draw by Bartlett's decomposition.

        Args:
            sample_shape: Shape before the batch's.
            max_try_correction: How often samples that rounding made singular are drawn again, 3 unless given.
        """
        tries = 3 if max_try_correction is None else max_try_correction
        sample = self._draw(Size(sample_shape))
        for _try in range(tries):
            singular = ~constraints.positive_definite.check(sample)
            if not bool(singular.any()):
                break
            sample = functions["where"](singular[..., None, None], self._draw(Size(sample_shape)), sample)
        return sample

    def _draw(self, sample_shape: Size) -> Tensor:
        tiny = finfo(self._unbroadcasted_scale_tril.dtype).tiny
        diagonal = self._chi2.rsample(sample_shape).clamp(min=tiny).sqrt()
        shape = self._extended_shape(sample_shape)
        below = _standard_normal(shape, diagonal.dtype, diagonal.device).tril(-1)
        factor = self._unbroadcasted_scale_tril @ (below + diagonal.diag_embed())
        return factor @ factor.mT

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        nu, p = self.df, self._event_shape[-1]
        scale = self._unbroadcasted_scale_tril
        solved = functions["cholesky_solve"](value, scale)
        trace = solved.diagonal(dim1=-2, dim2=-1).sum(-1)
        volume = -nu * (p * math.log(2) / 2 + log_determinant(scale)) - functions["mvlgamma"](nu / 2, p)
        return volume + (nu - p - 1) / 2 * functions["slogdet"](value)[1] - trace / 2  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        nu, p = self.df, self._event_shape[-1]
        digamma = (nu.unsqueeze(-1) / 2 - self._order(nu) / 2).digamma().sum(-1)
        volume = (p + 1) * (p * math.log(2) / 2 + log_determinant(self._unbroadcasted_scale_tril))
        whole = volume + functions["mvlgamma"](nu / 2, p) - (nu - p - 1) / 2 * digamma + nu * p / 2
        return whole  # type: ignore[no-any-return]

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (-self.precision_matrix / 2, (self.df - self._event_shape[-1] - 1) / 2)

    def _log_normalizer(self, x: Any, y: Any) -> Tensor:
        p = self._event_shape[-1]
        degrees = y + (p + 1) / 2
        volume = -functions["slogdet"](-2 * x)[1] + math.log(2) * p
        return degrees * volume + functions["mvlgamma"](degrees, p)  # type: ignore[no-any-return]


def _factor(name: str, matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor of the covariance matrix."""
    if name == "scale_tril":
        return matrix
    covariance = matrix if name == "covariance_matrix" else linalg.inv(matrix)
    return linalg.linalg_cholesky(covariance)
