"""`torch.distributions`: probability distributions whose parameters are tensors."""

from flambeau.core.names import lacking
from flambeau.distributions import constraints, transforms
from flambeau.distributions.bernoulli import Bernoulli
from flambeau.distributions.categorical import Categorical
from flambeau.distributions.cauchy import Cauchy
from flambeau.distributions.dirichlet import Beta, Dirichlet
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.exponential import Exponential
from flambeau.distributions.gamma import Chi2, Gamma
from flambeau.distributions.geometric import Geometric
from flambeau.distributions.gumbel import Gumbel
from flambeau.distributions.half_normal import HalfNormal
from flambeau.distributions.independent import Independent
from flambeau.distributions.kl import kl_divergence, register_kl
from flambeau.distributions.laplace import Laplace
from flambeau.distributions.log_normal import LogNormal
from flambeau.distributions.mixture_same_family import MixtureSameFamily
from flambeau.distributions.multivariate_normal import MultivariateNormal
from flambeau.distributions.negative_binomial import NegativeBinomial
from flambeau.distributions.normal import Normal
from flambeau.distributions.one_hot_categorical import OneHotCategorical, OneHotCategoricalStraightThrough
from flambeau.distributions.poisson import Poisson
from flambeau.distributions.relaxed_bernoulli import RelaxedBernoulli
from flambeau.distributions.relaxed_categorical import RelaxedOneHotCategorical
from flambeau.distributions.student_t import StudentT
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
)
from flambeau.distributions.uniform import Uniform

__all__ = [
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Categorical", "Cauchy", "Chi2", "ComposeTransform",
    "Dirichlet", "Distribution", "ExpTransform", "Exponential", "Gamma", "Geometric", "Gumbel", "HalfNormal",
    "Independent", "Laplace", "LogNormal", "MixtureSameFamily", "MultivariateNormal", "NegativeBinomial", "Normal",
    "OneHotCategorical", "OneHotCategoricalStraightThrough", "Poisson", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "SigmoidTransform", "StudentT", "TanhTransform", "Transform",
    "TransformedDistribution", "Uniform", "constraints", "kl_divergence", "register_kl", "transforms",
]  # fmt: skip

__getattr__ = lacking("torch.distributions")
