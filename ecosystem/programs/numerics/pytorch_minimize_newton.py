"""Minimizes Rosenbrock's function and least squares with pytorch-minimize's methods."""

import torch
from torchmin import Minimizer, least_squares, minimize

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def rosenbrock(x):
    """Return Rosenbrock's function, whose minimum lies at ones."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


start = torch.tensor([-0.5, 0.8, 0.4], dtype=torch.float64, device=device)
steps = {}
for method in ("bfgs", "l-bfgs", "newton-cg", "newton-exact", "trust-ncg", "trust-exact", "dogleg"):
    if method == "dogleg":
        result = minimize(lambda x: (x - 2).pow(2).sum() + x.pow(4).sum(), start, method=method)
        assert result.grad.norm() < 1e-4, method
    else:
        result = minimize(rosenbrock, start, method=method, max_iter=200)
        assert torch.allclose(result.x, torch.ones_like(start), atol=1e-3), (method, result.x)
    steps[method] = int(result.nit)

t = torch.linspace(0, 2, 30, dtype=torch.float64, device=device)
y = 2.5 * torch.exp(-1.3 * t)
fit = least_squares(
    lambda p: p[0] * torch.exp(-p[1] * t) - y, torch.tensor([1.0, 1.0], dtype=torch.float64, device=device)
)
assert torch.allclose(fit.x, torch.tensor([2.5, 1.3], dtype=torch.float64, device=device), atol=1e-4), fit.x

model = torch.nn.Linear(3, 1).double().to(device)
x = torch.randn(40, 3, dtype=torch.float64, device=device)
z = x @ torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64, device=device)
optimizer = Minimizer(model.parameters(), method="bfgs")


def closure():
    """Return the loss."""
    optimizer.zero_grad()
    return (model(x) - z).pow(2).mean()


loss = optimizer.step(closure)
assert closure() < 1e-6, closure()
print(f"pytorch-minimize: steps {steps}, fit {fit.x.tolist()}")
