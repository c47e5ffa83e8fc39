"""`kl_divergence` and the table of its formulas, to which programs may add (`register_kl`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributions.bernoulli import Bernoulli
from flambeau.distributions.beta import Beta
from flambeau.distributions.categorical import Categorical
from flambeau.distributions.cauchy import Cauchy
from flambeau.distributions.dirichlet import Dirichlet
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.exp_family import ExponentialFamily, differentiate_normalizer, sum_events
from flambeau.distributions.exponential import Exponential
from flambeau.distributions.gamma import Gamma
from flambeau.distributions.geometric import Geometric
from flambeau.distributions.gumbel import EULER, Gumbel
from flambeau.distributions.half_normal import HalfNormal
from flambeau.distributions.independent import Independent
from flambeau.distributions.laplace import Laplace
from flambeau.distributions.multivariate_normal import MultivariateNormal, log_determinant, mahalanobis
from flambeau.distributions.normal import Normal
from flambeau.distributions.one_hot_categorical import OneHotCategorical
from flambeau.distributions.poisson import Poisson
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.uniform import Uniform
from flambeau.distributions.utils import sum_rightmost
from flambeau.nn.functional import softplus
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import linalg
from flambeau.tensor.tensor import Tensor

Formula = Callable[[Any, Any], Tensor]
_formulas: dict[tuple[type, type], Formula] = {}
_KL_REGISTRY = _formulas  # its name in PyTorch


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Decorate a function of (p, q) as the formula of two classes, and of classes derived from them. As in PyTorch, the
    classes need not be distributions.

    Raises:
        TypeError: If there are no classes.
    """
    for kind, name in ((type_p, "type_p"), (type_q, "type_q")):
        if not isinstance(kind, type):
            raise TypeError(f"Expected {name} to be a Distribution subclass but got {kind}")

    def keep(formula: Formula) -> Formula:
        _formulas[type_p, type_q] = formula
        return formula

    return keep


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the divergence of Kullback and Leibler of q from p, in nats, of the batch's shape.

    Raises:
        NotImplementedError: If there is no formula for the two.
    """
    return _formula(type(p), type(q))(p, q)


def _formula(type_p: type, type_q: type) -> Formula:
    """Return the formula of the nearest classes, by the order of p's bases, then of q's."""
    for p in type_p.__mro__:
        for q in type_q.__mro__:
            if (p, q) in _formulas:
                return _formulas[p, q]
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type_p.__name__} and q type {type_q.__name__}"
    )


def infinite_where(outside: Any, value: Any) -> Tensor:
    """Return infinity where a condition holds, else a value."""
    return functions["where"](outside, value.new_full((), float("inf")), value)


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    distance = ((p.loc - q.loc) / q.scale).square()
    return 0.5 * (ratio + distance - 1 - ratio.log())


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    one = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    one = infinite_where(q.probs == 0, one).masked_fill(p.probs == 0, 0)
    none = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    none = infinite_where(q.probs == 1, none).masked_fill(p.probs == 1, 0)
    return one + none


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = infinite_where((q.probs == 0).expand_as(terms), terms)
    return terms.masked_fill((p.probs == 0).expand_as(terms), 0).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return infinite_where((q.low > p.low) | (q.high < p.high), found)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio = p.scale / q.scale
    away = (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    shapes = b.lgamma() - a.lgamma() + (a - b) * a.digamma()
    return b * (p.rate / q.rate).log() + shapes + (q.rate - p.rate) * (a / p.rate)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    volumes = total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return volumes + ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    away = (p.loc - q.loc) / q.scale
    return -ratio.log() + away + ratio * EULER + ((1 + ratio).lgamma() - away).exp() - (1 + EULER)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    widths, away = p.scale + q.scale, p.loc - q.loc
    return (widths.square() + away.square()).log() - (4 * p.scale * q.scale).log()


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be computed"
        )
    volumes = log_determinant(q._unbroadcasted_scale_tril) - log_determinant(p._unbroadcasted_scale_tril)
    spread = linalg.solve_triangular(q.scale_tril, p.scale_tril, upper=False).square().sum((-2, -1))
    distance = mahalanobis(q._unbroadcasted_scale_tril, q.loc - p.loc)
    return volumes + 0.5 * (spread + distance - p.event_shape[0])


@register_kl(ExponentialFamily, ExponentialFamily)
def _exponential_family(p: ExponentialFamily, q: ExponentialFamily) -> Tensor:
    if type(p) is not type(q):
        raise NotImplementedError(
            f"The cross KL-divergence between different exponential families cannot be computed using Bregman "
            f"divergences: {type(p).__name__} and {type(q).__name__}"
        )
    parameters, normalizer, means = differentiate_normalizer(p)
    others = q._natural_params
    found: Any = q._log_normalizer(*others) - normalizer
    for mine, other, mean in zip(parameters, others, means, strict=True):
        found = found - sum_events(p, (other - mine) * mean)
    return found  # type: ignore[no-any-return]


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed_pair(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    """Return the divergence of the base distributions, which equal bijections do not change."""
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError
    return kl_divergence(p.base_dist, q.base_dist)


explain_absent_names(globals(), "torch.distributions.kl")
