"""Fits a Bayesian linear regression by variational inference and by Hamiltonian Monte Carlo."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import ClippedAdam

device = "cuda" if torch.cuda.is_available() else "cpu"
pyro.set_rng_seed(0)

x = torch.linspace(-1, 1, 60, device=device)
y = 2.0 * x - 0.5 + 0.2 * torch.randn(60, device=device)


def model(x, y=None):
    slope = pyro.sample("slope", dist.Normal(x.new_zeros(()), 3.0))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 3.0))
    noise = pyro.sample("noise", dist.HalfNormal(x.new_ones(())))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(slope * x + intercept, noise), obs=y)


guide = AutoNormal(model)
svi = SVI(model, guide, ClippedAdam({"lr": 0.05}), Trace_ELBO())
losses = [svi.step(x, y) for _step in range(250)]
assert sum(losses[-10:]) < 0.3 * sum(losses[:10]), (losses[0], losses[-1])
median = guide.median(x, y)
assert abs(median["slope"].item() - 2.0) < 0.3 and abs(median["intercept"].item() + 0.5) < 0.2, median
samples = Predictive(model, guide=guide, num_samples=20)(x)
assert samples["y"].shape == (20, 60)


def coin(tosses):
    fairness = pyro.sample("fairness", dist.Beta(tosses.new_tensor(2.0), tosses.new_tensor(2.0)))
    with pyro.plate("tosses", len(tosses)):
        pyro.sample("toss", dist.Bernoulli(fairness), obs=tosses)


tosses = torch.tensor([1.0] * 7 + [0.0] * 3, device=device)
mcmc = MCMC(NUTS(coin), num_samples=60, warmup_steps=30, disable_progbar=True)
mcmc.run(tosses)
mean = mcmc.get_samples()["fairness"].mean().item()
assert abs(mean - 9 / 14) < 0.1, mean  # the posterior is Beta(9, 5)
print(f"pyro: slope {median['slope'].item():.2f}, posterior mean {mean:.2f}, exactly {9 / 14:.2f}")
