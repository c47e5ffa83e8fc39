"""Numbers of the Gamma family, which are not PyTorch's: their distributions and their gradients are."""

import math

import numpy as np
import pytest
from scipy.special import digamma
from support import from_torch, torch

import flambeau
from flambeau import distributions as D

COUNT = 20000
CONCENTRATIONS = (0.05, 0.6, 1.0, 2.5, 40.0, 1e4)


@pytest.fixture(autouse=True)
def machine():
    with flambeau.virtual(1):
        flambeau.manual_seed(3)
        yield


def distance(drawn, cdf):
    """Of Kolmogorov and Smirnov: between the numbers and their distribution."""
    at = np.sort(np.asarray(cdf(torch.from_numpy(np.sort(drawn)))))
    steps = np.arange(len(at) + 1) / len(at)
    return max(np.max(steps[1:] - at), np.max(at - steps[:-1]))


def by_series(a, z):
    """The derivative of the incomplete gamma function's series by its first argument, over the density."""
    n = np.arange(3000)
    factors = np.cumprod(np.concatenate([[1 / a], z / (a + n[1:])]))
    return -z * math.fsum(factors * (math.log(z) - digamma(a + n + 1)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_gammas_numbers_have_its_distribution(concentration, device):
    made = D.Gamma(flambeau.tensor(concentration, dtype=flambeau.float64, device=device), 2.0)
    drawn = made.sample((COUNT,)).cpu().numpy()
    reference = torch.distributions.Gamma(torch.tensor(concentration, dtype=torch.float64), 2.0)
    assert (drawn > 0).all() and distance(drawn, reference.cdf) < 1.63 / COUNT**0.5  # 1 in 100 is farther


@pytest.mark.parametrize("kind", ["float16", "float32", "bfloat16"])
def test_other_dtypes_have_no_zeros(kind):
    with flambeau.virtual(devices=1):  # PyTorch has kernels of halves on GPUs alone
        drawn = (
            D.Gamma(flambeau.full((500,), 0.02, dtype=getattr(flambeau, kind), device="cuda"), 1.0)
            .sample()
            .cpu()
        )
    assert repr(drawn.dtype) == f"torch.{kind}" and bool((drawn > 0).all())


def test_means_and_variances_of_its_relatives():
    for made in (
        D.Beta(0.7, 2.0),
        D.Dirichlet(flambeau.tensor([0.5, 2.0, 4.0])),
        D.Chi2(flambeau.tensor([0.5, 6.0])),
        D.StudentT(flambeau.tensor(9.0), 1.0, 2.0),
        D.NegativeBinomial(flambeau.tensor([0.5, 8.0]), flambeau.tensor([0.5, 0.3])),
    ):
        drawn = made.sample((COUNT,))
        near = 6 * made.stddev / COUNT**0.5
        assert bool(((drawn.mean(0) - made.mean).abs() <= near).all()), made
        assert bool(((drawn.var(0) / made.variance - 1).abs() < 0.2).all()), made


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_gradients_are_those_of_a_series_and_pytorchs(concentration):
    """PyTorch's own are approximations, right to some 5e-3."""
    a = torch.full((9,), concentration, dtype=torch.float64)
    scale = torch.tensor([-3.5, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.5], dtype=torch.float64)
    z = a * (1 + scale / (3 * a.sqrt())).clamp_min(0.02) ** 3
    wanted = torch._standard_gamma_grad(a, z)
    ours = torch.from_numpy(flambeau._standard_gamma_grad(from_torch(a), from_torch(z)).numpy())
    assert ((ours - wanted).abs() <= 5e-3 * wanted.abs()).all(), (ours, wanted)
    exact = torch.tensor([by_series(concentration, x) for x in z.tolist()], dtype=torch.float64)
    assert ((ours - exact).abs() <= 1e-5 * exact.abs()).all(), (ours, exact)


def test_gradients_of_samples_are_those_of_the_mean():
    a = flambeau.tensor([0.5, 2.0, 4.0], dtype=flambeau.float64, requires_grad=True)
    weight = flambeau.tensor([1.0, -2.0, 3.0], dtype=flambeau.float64)
    made = D.Dirichlet(a)
    (wanted,) = flambeau.autograd.grad((made.mean * weight).sum(), a)
    each = (made.rsample((COUNT,)) * weight).sum(-1)
    (found,) = flambeau.autograd.grad(each.mean(), a)
    assert flambeau.allclose(found, wanted, rtol=0.05, atol=0.005)


def test_policies_of_beta_learn_on_a_gpu():
    """Rewards are highest at 0.8: the mean of a policy moves there."""
    raw = flambeau.zeros(2, device="cuda", requires_grad=True)
    optimizer = flambeau.optim.Adam([raw], lr=0.1)
    for _ in range(60):
        a, b = flambeau.nn.functional.softplus(raw) + 1
        loss = (D.Beta(a, b).rsample((64,)) - 0.8).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    a, b = flambeau.nn.functional.softplus(raw) + 1
    assert abs(D.Beta(a, b).mean.item() - 0.8) < 0.05
