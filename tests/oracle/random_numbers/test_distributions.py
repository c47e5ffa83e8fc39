"""`torch.distributions`: each expression gives what PyTorch's gives, samples of one seed and errors too."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from support import torch

import flambeau

DISTRIBUTIONS = [
    "D.Normal(0.0, 2.0)",
    "D.Normal(x, s)",
    "D.Normal(0, s)",
    "D.LogNormal(x, s)",
    "D.LogNormal(0.5, 0.3)",
    "D.Uniform(-1.0, 2.0)",
    "D.Uniform(x, x + s)",
    "D.Exponential(2.0)",
    "D.Exponential(s)",
    "D.Laplace(0.0, 1.0)",
    "D.Laplace(x, s)",
    "D.Bernoulli(0.3)",
    "D.Bernoulli(p)",
    "D.Bernoulli(logits=x)",
    "D.Categorical(s)",
    "D.Categorical(p.expand(2, 3))",
    "D.Categorical(logits=m.stack([x, -x]))",
    "D.OneHotCategorical(s)",
    "D.OneHotCategorical(logits=m.stack([x, -x]))",
    "D.OneHotCategoricalStraightThrough(s)",
    "D.Poisson(s)",
    "D.MultivariateNormal(x, C)",
    "D.MultivariateNormal(x, precision_matrix=C)",
    "D.MultivariateNormal(m.stack([x, x]), scale_tril=m.linalg.cholesky(C))",
    "D.Independent(D.Normal(x, s), 1)",
    "D.Independent(D.Bernoulli(p.expand(2, 3)), 1)",
    "D.MixtureSameFamily(D.Categorical(s), D.Normal(x, s))",
    "D.MixtureSameFamily(D.Categorical(s[:2]), D.Independent(D.Normal(m.stack([x, -x]), 1.0), 1))",
    "D.TransformedDistribution(D.Normal(x, s), [D.TanhTransform(cache_size=1)])",
    "D.TransformedDistribution(D.Normal(x, s), [D.AffineTransform(1.0, -2.0), D.SigmoidTransform()])",
    "D.TransformedDistribution(D.Normal(x, s), D.ExpTransform().inv.inv)",
    "D.TransformedDistribution(D.MultivariateNormal(x, C), D.AffineTransform(x, s, event_dim=1))",
    "D.Gamma(s, 2.0)",
    "D.Gamma(2.5, 0.5)",
    "D.Chi2(s)",
    "D.Beta(2.0, 3.0)",
    "D.Beta(s, p + 1)",
    "D.Dirichlet(s)",
    "D.Dirichlet(m.stack([s, p]))",
    "D.StudentT(s + 1)",
    "D.StudentT(3.0, x, s)",
    "D.NegativeBinomial(3, p)",
    "D.NegativeBinomial(s, logits=x)",
    "D.Gumbel(x, s)",
    "D.Gumbel(0.5, 2.0)",
    "D.Cauchy(x, s)",
    "D.Cauchy(0.0, 1.0)",
    "D.HalfNormal(s)",
    "D.HalfNormal(2.0)",
    "D.Geometric(p)",
    "D.Geometric(0.3)",
    "D.Geometric(logits=s)",
    "D.RelaxedBernoulli(m.tensor(0.5), p)",
    "D.RelaxedOneHotCategorical(m.tensor(0.7), s)",
    "D.Binomial(5, p)",
    "D.Binomial(40, logits=x)",
    "D.Binomial(m.tensor([3.0, 4.0, 5.0]), p)",
    "D.Multinomial(6, s)",
    "D.Multinomial(4, logits=m.stack([x, -x]))",
    "D.ContinuousBernoulli(p)",
    "D.ContinuousBernoulli(0.5005)",
    "D.ContinuousBernoulli(logits=x)",
    "D.FisherSnedecor(s + 4, 5.0)",
    "D.FisherSnedecor(1.0, 2.0)",
    "D.GeneralizedPareto(x, s, 0.75 * x)",
    "D.GeneralizedPareto(x, s, -0.5 * s)",
    "D.GeneralizedPareto(0.0, 1.0, 0.25)",
    "D.GeneralizedPareto(0.0, s, 0.0)",
    "D.HalfCauchy(s)",
    "D.HalfCauchy(2.0)",
    "D.InverseGamma(s + 1.5, 2.0)",
    "D.InverseGamma(0.5, s)",
    "D.Kumaraswamy(s + 1, p + 1)",
    "D.Kumaraswamy(0.5, 3.0)",
    "D.LKJCholesky(3, 1.5)",
    "D.LKJCholesky(2, s)",
    "D.LogisticNormal(x, s)",
    "D.LowRankMultivariateNormal(x, m.narrow(C, 1, 0, 2), s)",
    "D.LowRankMultivariateNormal(m.stack([x, x]), m.narrow(C, 1, 0, 1), s)",
    "D.Pareto(s, s + 1.5)",
    "D.Pareto(1.0, 0.5)",
    "D.VonMises(x, s)",
    "D.VonMises(0.5, 20.0)",
    "D.Weibull(s, s + 1)",
    "D.Weibull(2.0, 0.5)",
    "D.Wishart(5.0, C)",
    "D.Wishart(s + 4, precision_matrix=C)",
    "D.Wishart(m.tensor(3.5), scale_tril=m.linalg.cholesky(C))",
]
QUESTIONS = [
    "d", "d.batch_shape", "d.event_shape", "d.support", "d.arg_constraints", "d.has_rsample", "d.has_enumerate_support",
    "d.mean", "d.variance", "d.stddev", "d.mode", "d.entropy()", "d.perplexity()", "d.enumerate_support()",
    "d.enumerate_support(expand=False)", "d.log_prob(m.stack([v, v]))", "d.log_prob(v).sum()", "d.cdf(v)",
    "d.icdf(m.tensor(0.3))", "d.log_prob(9.0)", "d.log_prob(v - 9.5)", "d.expand((2, *d.batch_shape))",
    "d.expand((2, *d.batch_shape)).log_prob(v)", "d.expand((2, *d.batch_shape)).mean", "D.kl_divergence(d, e)",
    "m.autograd.grad(d.log_prob(v).sum() * 1.0 + x.sum() * 0 + s.sum() * 0, [x, s])",
]  # fmt: skip
DRAWN = ["d.sample()", "d.sample((2, 2)).shape", "d.rsample((3,))", "d.sample((4,))"]
ERRORS = [
    "D.Normal(0.0, -1.0)",
    "D.Gamma(-1.0, 1.0)",
    "D.Gamma(1.0, 1.0).log_prob(m.tensor(-1.0))",
    "D.Beta(0.0, 1.0)",
    "D.Dirichlet(m.tensor(1.0))",
    "D.Dirichlet(m.tensor([0.5, 0.25])).mode",
    "D.StudentT(m.tensor([0.5, 1.5, 3.0])).variance",
    "D.StudentT(m.tensor([0.5, 1.5, 3.0])).mean",
    "D.NegativeBinomial(1.0)",
    "D.NegativeBinomial(1.0, 1.0)",
    "D.Geometric(m.tensor([0.5, 0.0]))",
    "D.Geometric(1.0).log_prob(m.tensor(0.0))",
    "D.AbsTransform() == D.AbsTransform(), D.AbsTransform().inv(s)",
    "D.Normal(x, x)",
    "D.Normal('a', 1)",
    "D.Normal(0.0, -1.0, validate_args=False)",
    "D.Categorical()",
    "D.Categorical(s, s)",
    "D.Categorical(m.tensor(1.0))",
    "D.Categorical(logits=m.tensor(1.0))",
    "D.Categorical(x)",
    "D.Categorical(s).log_prob(m.tensor(3))",
    "D.Bernoulli()",
    "D.Bernoulli(1.5)",
    "D.Bernoulli(0.5).log_prob(m.tensor(0.5))",
    "D.Normal(x, s).log_prob(m.zeros(2))",
    "D.MultivariateNormal(x, C).log_prob(m.zeros(2))",
    "D.MultivariateNormal(x)",
    "D.MultivariateNormal(x, -C)",
    "D.MultivariateNormal(m.tensor(1.0), C)",
    "D.Independent(D.Normal(0.0, 1.0), 1)",
    "D.Uniform(1.0, 0.0)",
    "D.Uniform(0.0, 1.0).log_prob(m.tensor(2.0))",
    "D.kl_divergence(D.Normal(0.0, 1.0), D.Categorical(s))",
    "D.kl_divergence(D.Categorical(s), D.Categorical(m.tensor([1.0, 0.0, 1.0])))",
    "D.kl_divergence(D.Categorical(m.tensor([1.0, 0.0, 1.0])), D.Categorical(s))",
    "D.kl_divergence(D.Bernoulli(m.tensor([0.0, 1.0, 0.5])), D.Bernoulli(m.tensor([0.5, 0.0, 1.0])))",
    "D.kl_divergence(D.Bernoulli(m.tensor([0.0, 1.0])), D.Bernoulli(m.tensor([0.0, 1.0])))",
    "D.kl_divergence(D.Uniform(0.0, 1.0), D.Uniform(m.tensor([-1.0, 0.5]), 2.0))",
    "D.Normal(0.0, 1.0).sample(3)",
    "D.MixtureSameFamily(D.Normal(0.0, 1.0), D.Normal(x, s))",
    "D.MixtureSameFamily(D.Categorical(s[:2]), D.Normal(x, s))",
    "D.TransformedDistribution(D.Normal(0.0, 1.0), 3)",
    "D.Transform(cache_size=2)",
    "D.Distribution().mean",
    "D.Distribution.set_default_validate_args(3)",
    "D.ComposeTransform([D.ExpTransform(), D.AffineTransform(0.0, 2.0)]).inv(s)",
    "D.AffineTransform(0.0, 2.0) == D.AffineTransform(0.0, 2.0)",
    "D.TanhTransform().inv(m.tensor([0.5]))",
    "D.constraints.real_vector.check(m.tensor([[1.0, float('nan')]]))",
    "D.constraints.lower_cholesky.check(C)",
    "D.constraints.positive_definite.check(m.stack([C, -C]))",
]


def answers(m: Any, made: str, questions: list[str]) -> list[str]:
    names = {
        "m": m, "D": m.distributions, "x": m.tensor([0.5, -1.0, 0.25], requires_grad=True),
        "s": m.tensor([0.5, 1.5, 1.0], requires_grad=True), "p": m.tensor([0.2, 0.5, 0.75]),
        "C": m.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 1.5]]),
    }  # fmt: skip
    other = re.sub(r"\bC\b", "C * 2", made.replace("s)", "s * 2)").replace("0.3", "0.6"))
    m.manual_seed(3)
    if made:
        names["d"], names["e"] = eval(made, names), eval(other, names)
        own = _value_of(made)
        names["v"] = names["d"].sample() if own is None else m.tensor(own)
    return [answer(question, names) for question in questions]


def _value_of(made: str) -> list[Any] | None:
    """A value where the numbers that are drawn are not PyTorch's."""
    if "Poisson" in made or "NegativeBinomial" in made:
        return [1.0, 0.0, 2.0]
    if "Beta" in made or "Dirichlet" in made:
        return [0.25, 0.5, 0.25]
    if "Binomial" in made or "Multinomial(6" in made or "Multinomial(4" in made:
        return [2.0, 1.0, 3.0] if "(4" not in made or "(40" in made else [1.0, 1.0, 2.0]
    if "VonMises" in made:
        return [0.5, -1.0, 3.0]
    if "LKJ" in made:
        n = 3 if "(3" in made else 2
        return [[1.0, 0.0, 0.0][:n], [0.6, 0.8, 0.0][:n], [0.0, 0.28, 0.96]][:n]
    if "Wishart" in made:
        return [[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 1.5]]
    kinds = ("Gamma", "Chi2", "StudentT", "FisherSnedecor")
    return [1.5, 0.25, 2.0] if any(kind in made for kind in kinds) else None


def answer(question: str, names: dict[str, Any]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return rounded(repr(eval(question, names)))
    except Exception as error:
        return rounded(f"{type(error).__name__}: {error}")


def rounded(text: str) -> str:
    """To four digits, without the names of nodes and the lines of long tensors."""
    text = re.sub(r",?\s*grad_fn=<\w+>", "", text)
    text = re.sub(r"-?\d+\.\d+(e[+-]\d+)?", lambda found: f"{float(found[0]):.3g}", text)
    return re.sub(r"\bflambeau\b", "torch", re.sub(r"-0(?=[,\])])", "0", " ".join(text.split())))


@pytest.mark.parametrize("made", DISTRIBUTIONS)
def test_questions_to_distributions(made: str) -> None:
    assert answers(flambeau, made, QUESTIONS) == answers(torch, made, QUESTIONS)


@pytest.mark.parametrize("made", [made for made in DISTRIBUTIONS if _value_of(made) is None])
def test_samples_of_a_seed(made: str) -> None:
    assert answers(flambeau, made, DRAWN) == answers(torch, made, DRAWN)


@pytest.mark.parametrize("expression", ERRORS)
def test_single_expressions(expression: str) -> None:
    assert answers(flambeau, "", [expression]) == answers(torch, "", [expression])


def test_a_formula_of_ones_own() -> None:
    normal, divergence = flambeau.distributions.Normal, flambeau.distributions.kl_divergence

    class Mine(normal):  # type: ignore[valid-type, misc]
        pass

    @flambeau.distributions.register_kl(Mine, normal)
    def formula(p: Any, q: Any) -> Any:
        return q.loc - p.loc

    try:
        assert divergence(Mine(1.0, 1.0), normal(3.0, 1.0)).item() == 2
        assert divergence(normal(1.0, 1.0), Mine(1.0, 1.0)).item() == 0
        with pytest.raises(TypeError, match="Expected type_p to be a Distribution subclass"):
            flambeau.distributions.register_kl(3, normal)
    finally:
        del flambeau.distributions.kl._formulas[Mine, normal]


def test_on_a_gpu_they_sample_there() -> None:
    with flambeau.virtual(devices=1, races="error"):
        kit, where = flambeau.distributions, flambeau.device("cuda", 0)
        logits = flambeau.zeros(4, 3, device=where, requires_grad=True)
        made = [
            kit.Categorical(logits=logits),
            kit.Normal(logits, 1.0),
            kit.Independent(kit.Bernoulli(logits=logits), 1),
        ]
        for d in made:
            value = d.sample((5,))
            assert value.device == where
            d.log_prob(value).sum().backward()
        assert logits.grad.device == where
