"""Maximizes a function of two variables with Bayesian optimization."""

import warnings

import torch
from botorch.acquisition import LogExpectedImprovement, qExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood

warnings.simplefilter("ignore")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
bounds = torch.tensor([[-1.0, -1.0], [2.0, 2.0]], dtype=torch.float64, device=device)


def objective(x):
    return -((x[..., :1] - 0.7) ** 2) - (x[..., 1:] - 0.2) ** 2


x = draw_sobol_samples(bounds, n=6, q=1, seed=0).squeeze(1)
start = objective(x).max().item()
for _round in range(3):
    y = objective(x)
    model = SingleTaskGP(x, y, input_transform=Normalize(2), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    candidate, value = optimize_acqf(
        LogExpectedImprovement(model, best_f=y.max()), bounds, q=1, num_restarts=2, raw_samples=16
    )
    assert (candidate >= bounds[0]).all() and (candidate <= bounds[1]).all()
    x = torch.cat([x, candidate])
best = objective(x).max().item()
assert best > -0.05 and best > start, (start, best)

batch, _ = optimize_acqf(qExpectedImprovement(model, y.max()), bounds, q=2, num_restarts=1, raw_samples=4)
assert batch.shape == (2, 2)
print(f"botorch: best value {start:.4f} to {best:.4f}")
