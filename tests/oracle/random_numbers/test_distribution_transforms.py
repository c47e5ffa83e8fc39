"""`torch.distributions`: transforms, constraints, registries, divergences and samples' moments, against PyTorch."""

from __future__ import annotations

import itertools
import random
import warnings
from typing import Any

import numpy as np
import pytest
from support import torch

import flambeau

T = [f"m.tensor({v})" for v in ("[0.3, -1.2, 2.0]", "[[0.5, -0.25, 1.5], [2.0, 0.1, -3.0]]")]
TRANSFORMS = [
    "D.AbsTransform()",
    "D.AffineTransform(1.0, -2.0)",
    "D.AffineTransform(m.tensor([1.0, 2.0, 3.0]), m.tensor([0.5, -1.0, 2.0]), event_dim=1)",
    "D.CatTransform([D.ExpTransform(), D.AffineTransform(1.0, 2.0)], dim=-1, lengths=[1, 2])",
    "D.ComposeTransform([])",
    "D.ComposeTransform([D.AffineTransform(0.0, 0.5), D.StickBreakingTransform()])",
    "D.ComposeTransform([D.SoftplusTransform(), D.PowerTransform(m.tensor(2.0))])",
    "D.CorrCholeskyTransform()",
    "D.CumulativeDistributionTransform(D.Normal(0.0, 1.0))",
    "D.ExpTransform()",
    "D.ExpTransform().inv.inv",
    "D.IndependentTransform(D.ExpTransform(), 1)",
    "D.ReshapeTransform((3,), (3, 1))",
    "D.SigmoidTransform()",
    "D.SoftmaxTransform()",
    "D.SoftplusTransform()",
    "D.StackTransform([D.ExpTransform(), D.SigmoidTransform(), D.AffineTransform(0.0, 3.0)], dim=-1)",
    "D.StickBreakingTransform()",
    "D.TanhTransform(cache_size=1)",
    "D.TransformedDistribution(D.Normal(m.zeros(3), 1.0), D.StickBreakingTransform()).transforms[0]",
]
QUESTIONS = [
    "t(x)", "t.inv(t(x))", "t.log_abs_det_jacobian(x, t(x))", "t.inv.log_abs_det_jacobian(t(x), x)", "t.bijective",
    "t.sign", "t.domain.event_dim", "t.codomain.event_dim", "t.event_dim", "t.forward_shape((4, 3))",
    "t.inverse_shape(t(x).shape)", "t.codomain.check(t(x))", "t.with_cache(1)(x)", "t == t", "t.inv.domain.event_dim",
]  # fmt: skip
CONSTRAINTS = [
    "C.real", "C.positive", "C.nonnegative", "C.unit_interval", "C.greater_than(1.5)", "C.greater_than_eq(-2.0)",
    "C.less_than(0.5)", "C.interval(-1.0, 2.0)", "C.half_open_interval(0.0, 4.0)", "C.simplex", "C.real_vector",
    "C.corr_cholesky", "C.independent(C.positive, 1)", "C.stack([C.positive, C.real, C.unit_interval], -1)",
    "C.cat([C.positive, C.simplex], -1, [1, 2])", "C.interval(m.tensor(0.0), m.tensor(2.0))", "C.boolean", "C.one_hot",
    "C.lower_cholesky", "C.positive_definite", "C.positive_semidefinite", "C.nonnegative_integer", "C.dependent",
]  # fmt: skip
REGISTRIES = [
    f"D.{registry}({c})({v})"
    for registry in ("transform_to", "biject_to")
    for c in CONSTRAINTS[:16]
    for v in T
]
MATRICES = [
    f"D.transform_to(C.{c})(m.tensor([[0.5, 9.0], [-1.0, 0.3]]))"
    for c in ("lower_cholesky", "positive_definite", "positive_semidefinite")
]
CHECKS = [
    f"C.{c}.check(m.tensor({v}))"
    for c in ("lower_triangular", "lower_cholesky", "corr_cholesky", "square", "symmetric", "positive_semidefinite",
              "positive_definite", "one_hot", "simplex", "multinomial(3)", "boolean", "integer_interval(0, 2)")
    for v in ("[[1.0, 0.0], [0.6, 0.8]]", "[[2.0, 0.5], [0.5, 1.0]]", "[[1.0, 2.0], [2.0, 1.0]]", "[[0.0, 1.0], [1.0, 0.0]]")
]  # fmt: skip
OTHERS = [
    "D.transform_to(C.boolean)", "D.biject_to(C.lower_cholesky)", "D.transform_to.register(3, 4)", "C.dependent.event_dim",
    "C.cat([C.positive, C.simplex], 0).event_dim", "C.is_dependent(C.dependent)", "repr(C.stack([C.real]))",
    "U.vec_to_tril_matrix(m.tensor([1.0, 2.0, 3.0]))", "U.vec_to_tril_matrix(m.tensor([1.0, 2.0, 3.0]), -1)",
    "U.tril_matrix_to_vec(m.tensor([[1.0, 2.0], [3.0, 4.0]]))", "U.tril_matrix_to_vec(m.eye(3), -1)",
    "U.vec_to_tril_matrix(m.tensor([1.0, 2.0]))", "U.tril_matrix_to_vec(m.eye(2), 2)",
    "D.Normal(m.zeros(2), 1.0).sample_n(3).shape", "D.ExponentialFamily.entropy(D.Normal(0.5, 2.0))",
    "D.identity_transform(m.tensor(2.0))",
    "D.ExponentialFamily.entropy(D.Wishart(5.0, m.eye(2)))", "D.kl_divergence(D.Wishart(5.0, m.eye(2)), D.Wishart(4.0, m.eye(2) * 2))",
    "D.TransformedDistribution(D.Normal(m.zeros(2, 3), 1.0), D.StickBreakingTransform()).event_shape",
    "D.TransformedDistribution(D.Normal(0.0, 1.0), D.AffineTransform(m.zeros(4), 2.0)).batch_shape",
    "D.TransformedDistribution(D.Normal(m.zeros(3), 1.0), D.CorrCholeskyTransform()).log_prob(m.eye(3))",
    "D.TransformedDistribution(D.Normal(m.zeros(3), 1.0), [D.ExpTransform(), D.ReshapeTransform((3,), (3, 1))]).log_prob(m.ones(3, 1))",
    "D.TransformedDistribution(D.Normal(m.zeros(6), 1.0), D.ReshapeTransform((6,), (2, 3))).expand((4,)).sample().shape",
    "D.TransformedDistribution(D.Normal(0.0, 1.0), D.StickBreakingTransform())",
]  # fmt: skip


def answer(m: Any, expression: str, more: dict[str, Any] | None = None) -> Any:
    names = {"m": m, "D": m.distributions, "C": m.distributions.constraints, "U": m.distributions.utils}
    m.manual_seed(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = eval(expression, names | (more or {}))
    except Exception as error:
        return type(error).__name__, str(error)
    return np.asarray(value.tolist(), float) if isinstance(value, m.Tensor) else value


def assert_equal(expression: str, ours: Any, theirs: Any) -> None:
    if isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray), (expression, ours)
        assert ours.shape == theirs.shape, expression
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=expression)
    else:
        assert ours == theirs, expression


@pytest.mark.parametrize("made", TRANSFORMS)
def test_transforms_answer_as_pytorch(made: str) -> None:
    for question in QUESTIONS:
        for x in T:
            found = []
            for m in (flambeau, torch):
                names = {"m": m, "D": m.distributions}
                found.append(answer(m, question, {"t": eval(made, names), "x": eval(x, names)}))
            assert_equal(f"{made}: {question}", *found)


@pytest.mark.parametrize("expression", REGISTRIES + MATRICES + CHECKS + OTHERS)
def test_expressions_answer_as_pytorch(expression: str) -> None:
    assert_equal(expression, answer(flambeau, expression), answer(torch, expression))


def parameters(kind: str, draw: random.Random) -> str:
    """Return an expression of a distribution with random parameters."""
    positive = lambda: f"m.tensor([{draw.uniform(0.2, 4):.3f}, {draw.uniform(0.2, 4):.3f}])"  # noqa: E731
    real = lambda: f"m.tensor([{draw.uniform(-2, 2):.3f}, {draw.uniform(-2, 2):.3f}])"  # noqa: E731
    unit = lambda: f"m.tensor([{draw.uniform(0.05, 0.95):.3f}, {draw.uniform(0.05, 0.95):.3f}])"  # noqa: E731
    if kind in ("Bernoulli", "ContinuousBernoulli", "Geometric"):
        return f"D.{kind}({unit()})"
    if kind == "Binomial":
        return f"D.Binomial({draw.randint(3, 5)}, {unit()})"
    if kind in ("Exponential", "Poisson", "HalfNormal"):
        return f"D.{kind}({positive()})"
    if kind == "Uniform":
        # Not at 0 and 1: there PyTorch calls the divergence from a continuous Bernoulli distribution infinite.
        low, width = draw.choice([0.05, 0.1, -1.0]), draw.choice([0.5, 2.5, 3.0])
        return f"D.Uniform(m.tensor([{low}, 0.25]), m.tensor([{low + width}, 0.75]))"
    if kind == "LowRankMultivariateNormal":
        factor = [[round(draw.uniform(-1, 1), 3)] for _ in range(2)]
        return f"D.{kind}({real()}, m.tensor({factor}), {positive()})"
    if kind == "MultivariateNormal":
        return f"D.{kind}({real()}, m.eye(2) * {draw.uniform(0.5, 2):.3f} + 0.3)"
    if kind in ("Categorical", "OneHotCategorical", "Dirichlet"):
        return f"D.{kind}({positive()})"
    first = positive() if kind in ("Beta", "Gamma", "Pareto") else real()
    return f"D.{kind}({first}, {positive()})"


def registered_pairs() -> list[tuple[str, str]]:
    pairs = [(p.__name__, q.__name__) for p, q in torch.distributions.kl._KL_REGISTRY] if torch else []
    general = {"ExponentialFamily", "TransformedDistribution", "Independent"}
    return [pair for pair in pairs if not general & set(pair)]


@pytest.mark.parametrize("pair", registered_pairs(), ids="-".join)
def test_divergences_of_random_parameters(pair: tuple[str, str]) -> None:
    draw = random.Random("".join(pair))
    for _turn in range(6):
        expression = f"D.kl_divergence({parameters(pair[0], draw)}, {parameters(pair[1], draw)})"
        assert_equal(expression, answer(flambeau, expression), answer(torch, expression))


SAMPLED = [
    "D.Binomial(m.tensor([5.0, 60.0, 1000.0]), m.tensor([0.3, 0.9, 0.02]))",
    "D.Multinomial(7, m.tensor([0.2, 0.5, 0.3]))",
    "D.ContinuousBernoulli(m.tensor([0.1, 0.5, 0.8]))",
    "D.FisherSnedecor(m.tensor([3.0, 8.0]), m.tensor([12.0, 20.0]))",
    "D.GeneralizedPareto(m.tensor([0.0, 1.0, 2.0]), 1.5, m.tensor([0.0, -0.5, 0.15]))",
    "D.InverseGamma(m.tensor([6.0, 9.0]), 2.0)",
    "D.Kumaraswamy(m.tensor([2.0, 0.7]), m.tensor([3.0, 1.5]))",
    "D.LowRankMultivariateNormal(m.tensor([1.0, 2.0, 3.0]), m.tensor([[1.0], [0.5], [2.0]]), m.tensor([0.5, 1.0, 2.0]))",
    "D.Pareto(m.tensor([1.0, 2.0]), m.tensor([6.0, 9.0]))",
    "D.Weibull(m.tensor([1.0, 2.0]), m.tensor([0.9, 3.0]))",
    "D.Wishart(m.tensor([4.0, 7.5]), m.tensor([[2.0, 0.5], [0.5, 1.0]]))",
]


@pytest.mark.parametrize("made", SAMPLED)
def test_moments_of_samples(made: str) -> None:
    """Mean and variance of 20,000 samples lie within five standard errors of what the distribution says."""
    flambeau.manual_seed(5)
    d = eval(made, {"m": flambeau, "D": flambeau.distributions})
    n = 20_000
    values = d.sample((n,)).double()
    assert d.support.check(values.float()).all()
    mean, variance = d.mean.double(), d.variance.double()
    assert ((values.mean(0) - mean).abs() <= 5 * (variance / n).sqrt() + 1e-6).all()
    kurtosis = ((values - mean) ** 4).mean(0)
    error = ((kurtosis - variance**2).clamp(min=0) / n).sqrt()
    assert ((((values - mean) ** 2).mean(0) - variance).abs() <= 5 * error + 1e-6).all()


def test_circular_moments_of_von_mises() -> None:
    flambeau.manual_seed(5)
    d = flambeau.distributions.VonMises(flambeau.tensor([0.5, -3.0]), flambeau.tensor([0.4, 8.0]))
    values = d.sample((20_000,))
    assert (values.abs() <= np.pi + 1e-6).all()
    length = (values - d.loc).cos().mean(0)
    assert flambeau.allclose(1 - length, d.variance, atol=0.02)
    assert ((values - d.loc).sin().mean(0).abs() < 0.02).all()


def test_correlations_of_lkj_cholesky() -> None:
    """Each correlation of n variables is 2 b - 1 of a Beta(c + n/2 - 1, c + n/2 - 1)."""
    flambeau.manual_seed(5)
    d = flambeau.distributions.LKJCholesky(4, 1.5)
    factors = d.sample((8000,))
    assert d.support.check(factors).all()
    values = (factors @ factors.mT).flatten(1)[:, [1, 2, 3, 6, 7, 11]]
    concentration = 1.5 + 4 / 2 - 1
    assert flambeau.allclose(values.var(0), flambeau.full((6,), 1 / (2 * concentration + 1)), atol=0.02)
    assert (values.mean(0).abs() < 0.03).all()


def test_reparametrized_gradients() -> None:
    """Gradients of one seed's samples are PyTorch's."""
    for made in ("D.Weibull(a, b)", "D.Pareto(a, b)", "D.Kumaraswamy(a, b)", "D.HalfCauchy(a)", "D.GeneralizedPareto(a, b, a)",
                 "D.ContinuousBernoulli(logits=a)", "D.LogisticNormal(a, b)", "D.LowRankMultivariateNormal(a, b[:, None], b)"):  # fmt: skip
        found = []
        for m in (flambeau, torch):
            a, b = m.tensor([0.5, 1.5], requires_grad=True), m.tensor([0.9, 2.0], requires_grad=True)
            m.manual_seed(3)
            made_here = eval(made, {"D": m.distributions, "a": a, "b": b})
            gradients = m.autograd.grad(made_here.rsample((3,)).square().sum() + b.sum() * 0, [a, b])
            found.append([value for g in gradients for value in g.tolist()])
        np.testing.assert_allclose(found[0], found[1], rtol=1e-3, err_msg=made)


def test_they_sample_on_a_gpu() -> None:
    with flambeau.virtual(devices=1, races="error"):
        kit, where = flambeau.distributions, flambeau.device("cuda", 0)
        a, b = flambeau.tensor([0.5, 0.25], device=where), flambeau.tensor([2.0, 3.0], device=where)
        made = [
            kit.Binomial(b * 10, a), kit.Multinomial(3, a), kit.VonMises(a, b), kit.LKJCholesky(3, b), kit.Wishart(b + 1, flambeau.eye(2, device=where)),
            kit.LowRankMultivariateNormal(a, b[:, None], b), kit.Weibull(a, b), kit.LogisticNormal(a, b),
        ]  # fmt: skip
        for d in made:
            assert d.log_prob(d.sample((5,))).device == where


def test_modules_have_pytorch_names() -> None:
    import importlib
    import pkgutil

    names = [info.name for info in pkgutil.iter_modules(torch.distributions.__path__)]
    for name in names:
        module = importlib.import_module(f"flambeau.distributions.{name}")
        theirs = importlib.import_module(f"torch.distributions.{name}")
        missing = [n for n in getattr(theirs, "__all__", []) if not hasattr(module, n)]
        assert missing == [], name
    assert (
        list(itertools.filterfalse(lambda n: hasattr(flambeau.distributions, n), torch.distributions.__all__))
        == []
    )
