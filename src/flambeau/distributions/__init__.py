"""`torch.distributions`: probability distributions whose parameters are tensors. The Gamma family is absent."""

from flambeau.core.names import lacking
from flambeau.distributions import constraints, transforms
from flambeau.distributions.bernoulli import Bernoulli
from flambeau.distributions.categorical import Categorical
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.exponential import Exponential
from flambeau.distributions.independent import Independent
from flambeau.distributions.kl import kl_divergence, register_kl
from flambeau.distributions.laplace import Laplace
from flambeau.distributions.log_normal import LogNormal
from flambeau.distributions.mixture_same_family import MixtureSameFamily
from flambeau.distributions.multivariate_normal import MultivariateNormal
from flambeau.distributions.normal import Normal
from flambeau.distributions.one_hot_categorical import OneHotCategorical, OneHotCategoricalStraightThrough
from flambeau.distributions.poisson import Poisson
from flambeau.distributions.relaxed_bernoulli import RelaxedBernoulli
from flambeau.distributions.relaxed_categorical import RelaxedOneHotCategorical
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
)
from flambeau.distributions.uniform import Uniform

__all__ = [
    "AffineTransform", "Bernoulli", "Categorical", "ComposeTransform", "Distribution", "ExpTransform", "Exponential",
    "Independent", "Laplace", "LogNormal", "MixtureSameFamily", "MultivariateNormal", "Normal", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical", "SigmoidTransform",
    "TanhTransform", "Transform", "TransformedDistribution", "Uniform", "constraints", "kl_divergence", "register_kl",
    "transforms",
]  # fmt: skip

__getattr__ = lacking("torch.distributions")
