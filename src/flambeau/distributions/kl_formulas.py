"""Formulas of `kl_divergence` for two distributions of different classes, and of the rarer classes.

They follow from the definition: minus the entropy of p, less the mean of q's log density under p.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.distributions.bernoulli import Bernoulli
from flambeau.distributions.beta import Beta
from flambeau.distributions.binomial import Binomial
from flambeau.distributions.continuous_bernoulli import ContinuousBernoulli
from flambeau.distributions.exponential import Exponential
from flambeau.distributions.gamma import Gamma
from flambeau.distributions.gumbel import EULER, Gumbel
from flambeau.distributions.kl import infinite_where, register_kl
from flambeau.distributions.laplace import Laplace
from flambeau.distributions.lowrank_multivariate_normal import (
    LowRankMultivariateNormal,
    low_rank_log_determinant,
    low_rank_mahalanobis,
)
from flambeau.distributions.multivariate_normal import MultivariateNormal, log_determinant, mahalanobis
from flambeau.distributions.normal import Normal
from flambeau.distributions.pareto import Pareto
from flambeau.distributions.poisson import Poisson
from flambeau.distributions.uniform import Uniform
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import linalg
from flambeau.tensor.tensor import Tensor

# p's values lie outside of q's support with positive probability.
_DISJOINT: dict[type, tuple[str, tuple[type, ...]]] = {
    Beta: ("concentration1", (Pareto,)),
    ContinuousBernoulli: ("probs", (Pareto,)),
    Exponential: ("rate", (Beta, ContinuousBernoulli, Pareto, Uniform)),
    Gamma: ("concentration", (Beta, ContinuousBernoulli, Pareto, Uniform)),
    Gumbel: ("loc", (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    Laplace: ("loc", (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    Normal: ("loc", (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    Pareto: ("scale", (Beta, ContinuousBernoulli, Uniform)),
    Poisson: ("rate", (Bernoulli, Binomial)),
}


def _register_disjoint() -> None:
    for kind, (parameter, others) in _DISJOINT.items():
        for other in others:

            @register_kl(kind, other)
            def infinite(p: Any, q: Any, parameter: str = parameter) -> Tensor:
                return functions["full_like"](getattr(p, parameter), math.inf)  # type: ignore[no-any-return]


_register_disjoint()


def _xlogx(x: Any) -> Any:
    return x.xlogy(x)


def _cross_exponential(mean: Any, q: Any) -> Any:
    """Return minus the mean of an exponential distribution's log density."""
    return q.rate * mean - q.rate.log()


def _cross_normal(mean: Any, variance: Any, q: Any) -> Any:
    """Return minus the mean of a normal distribution's log density."""
    away = variance + (mean - q.loc).square()
    return 0.5 * (2 * math.pi * q.scale.square()).log() + away / (2 * q.scale.square())


def _cross_gamma(mean: Any, log_mean: Any, q: Any) -> Any:
    """Return minus the mean of a gamma distribution's log density."""
    a, rate = q.concentration, q.rate
    return a.lgamma() - a * rate.log() - (a - 1) * log_mean + rate * mean


def _cross_bernoulli(mean: Any, q: Any) -> Any:
    """Return minus the mean of a continuous Bernoulli distribution's log density."""
    return -mean * q.logits - (-q.probs).log1p() - q._cont_bern_log_norm()


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError(
            "KL between Binomials where q.total_count > p.total_count is not implemented"
        )
    one = p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    return infinite_where(p.total_count > q.total_count, p.total_count * one)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    volume = p._cont_bern_log_norm() - q._cont_bern_log_norm() + (-p.probs).log1p() - (-q.probs).log1p()
    return p.mean * (p.logits - q.logits) + volume


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Tensor:
    scales, powers = p.scale / q.scale, q.alpha / p.alpha
    return infinite_where(p.scale < q.scale, q.alpha * scales.log() - powers.log() + powers - 1)


# -- multivariate normal distributions ------------------------------------------------------------------


def _check_events(p: Any, q: Any, first: str, second: str) -> None:
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"KL-divergence between {first} {second} with different event shapes cannot be computed"
        )


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _low_rank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    _check_events(p, q, "two Low Rank Multivariate Normals", "distributions")
    factor, diagonal = p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag
    return _from_low_rank(p, q, [factor, diagonal.sqrt().diag_embed()], _log_determinant(p))


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _full_to_low_rank(p: MultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    _check_events(p, q, "two (Low Rank) Multivariate Normals", "distributions")
    scale = p._unbroadcasted_scale_tril
    return _from_low_rank(p, q, [scale], 2 * log_determinant(scale))


def _from_low_rank(p: Any, q: Any, factors: list[Any], volume: Any) -> Tensor:
    """Return the divergence of q, of low rank, from p with the covariance sum of F F^T over factors."""
    diagonal, capacitance = q._unbroadcasted_cov_diag, q._capacitance_tril
    scaled = q._unbroadcasted_cov_factor.mT / diagonal.unsqueeze(-2)
    trace: Any = 0.0
    for factor in factors:  # tr(Q^-1 F F^T) by the Woodbury identity
        solved = linalg.solve_triangular(capacitance, scaled @ factor, upper=False)
        trace = (
            trace + (factor.square() / diagonal.unsqueeze(-1)).sum((-2, -1)) - solved.square().sum((-2, -1))
        )
    distance = low_rank_mahalanobis(q._unbroadcasted_cov_factor, diagonal, q.loc - p.loc, capacitance)
    return 0.5 * (_log_determinant(q) - volume + trace + distance - p.event_shape[0])  # type: ignore[no-any-return]


@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _low_rank_to_full(p: LowRankMultivariateNormal, q: MultivariateNormal) -> Tensor:
    _check_events(p, q, "two (Low Rank) Multivariate Normals", "distributions")
    scale = q._unbroadcasted_scale_tril
    trace: Any = 0.0
    for factor in (p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag.sqrt().diag_embed()):
        trace = trace + linalg.solve_triangular(scale, factor, upper=False).square().sum((-2, -1))
    distance = mahalanobis(scale, q.loc - p.loc)
    volume = 2 * log_determinant(scale) - _log_determinant(p)
    return 0.5 * (volume + trace + distance - p.event_shape[0])  # type: ignore[no-any-return]


def _log_determinant(d: LowRankMultivariateNormal) -> Tensor:
    return low_rank_log_determinant(d._unbroadcasted_cov_diag, d._capacitance_tril)


# -- of different classes -------------------------------------------------------------------------------


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


@register_kl(Beta, ContinuousBernoulli)
def _beta_bernoulli(p: Beta, q: ContinuousBernoulli) -> Tensor:
    return -p.entropy() + _cross_bernoulli(p.mean, q)  # type: ignore[no-any-return]


@register_kl(ContinuousBernoulli, Exponential)
@register_kl(Beta, Exponential)
@register_kl(Gamma, Exponential)
def _to_exponential(p: Any, q: Exponential) -> Tensor:
    return -p.entropy() + _cross_exponential(p.mean, q)  # type: ignore[no-any-return]


@register_kl(Beta, Normal)
@register_kl(ContinuousBernoulli, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _to_normal(p: Any, q: Normal) -> Tensor:
    return -p.entropy() + _cross_normal(p.mean, p.variance, q)  # type: ignore[no-any-return]


@register_kl(Beta, Gamma)
def _beta_gamma(p: Beta, q: Gamma) -> Tensor:
    log_mean = p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    return -p.entropy() + _cross_gamma(p.mean, log_mean, q)  # type: ignore[no-any-return]


@register_kl(Beta, Uniform)
@register_kl(ContinuousBernoulli, Uniform)
def _to_uniform(p: Any, q: Uniform) -> Tensor:
    return infinite_where((q.high < 1) | (q.low > 0), -p.entropy() + (q.high - q.low).log())


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    return -p.entropy() + _cross_gamma(p.mean, -EULER - p.rate.log(), q)  # type: ignore[no-any-return]


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Exponential, q: Gumbel) -> Tensor:
    product, ratio = p.rate * q.scale, q.loc / q.scale
    return product.log() - 1 - ratio + ratio.exp() * product / (product + 1) + product.reciprocal()


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    a, product, ratio = p.concentration, p.rate * q.scale, q.loc / q.scale
    volume = (a - 1) * a.digamma() - a.lgamma() - a + product.log() + a / product
    return volume + ratio.exp() * (1 + product.reciprocal()).pow(-a) - ratio


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return away + (0.5 * ratio.square() - away).exp() - ratio.log() - 0.5 * (1 + math.log(2 * math.pi))


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    away = p.loc - q.loc
    ratio = away / p.scale
    distance = p.scale * math.sqrt(2 / math.pi) * (-0.5 * ratio.square()).exp()
    distance = distance + away * (math.sqrt(0.5) * ratio).erf()
    return -p.entropy() + (2 * q.scale).log() + distance / q.scale


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Pareto, q: Exponential) -> Tensor:
    mean = p.alpha * p.scale / (p.alpha - 1)
    return infinite_where(p.alpha <= 1, -p.entropy() + _cross_exponential(mean, q))


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Pareto, q: Gamma) -> Tensor:
    mean = p.alpha * p.scale / (p.alpha - 1)
    log_mean = p.scale.log() + p.alpha.reciprocal()
    return infinite_where(p.alpha <= 1, -p.entropy() + _cross_gamma(mean, log_mean, q))


@register_kl(Pareto, Normal)
def _pareto_normal(p: Pareto, q: Normal) -> Tensor:
    common = p.scale / (p.alpha - 1)
    variance = p.alpha * common.square() / (p.alpha - 2)
    return infinite_where(p.alpha <= 2, -p.entropy() + _cross_normal(p.alpha * common, variance, q))


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    width = p.high - p.low
    a, b = q.concentration1, q.concentration0
    log_mean = (_xlogx(p.high) - _xlogx(p.low)) / width - 1
    log_rest = (_xlogx(1 - p.low) - _xlogx(1 - p.high)) / width - 1
    volume = a.lgamma() + b.lgamma() - (a + b).lgamma()
    found = volume - width.log() - (a - 1) * log_mean - (b - 1) * log_rest
    return infinite_where((p.high > 1) | (p.low < 0), found)


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    return infinite_where((p.high > 1) | (p.low < 0), -p.entropy() + _cross_bernoulli(p.mean, q))


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    return infinite_where(p.low < 0, -p.entropy() + _cross_exponential(p.mean, q))


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    log_mean = (_xlogx(p.high) - _xlogx(p.low)) / (p.high - p.low) - 1
    return infinite_where(p.low < 0, -p.entropy() + _cross_gamma(p.mean, log_mean, q))


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    common = q.scale / (p.high - p.low)
    high, low = (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return common.log() + 0.5 * (high + low) - common * ((-high).exp() - (-low).exp())


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    log_mean = (_xlogx(p.high) - _xlogx(p.low)) / (p.high - p.low) - 1
    found = log_mean * (q.alpha + 1) - q.alpha.log() - q.alpha * q.scale.log() - (p.high - p.low).log()
    return infinite_where(p.low < q.scale, found)
