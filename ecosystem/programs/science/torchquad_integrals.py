"""Integrates functions of several dimensions with deterministic and Monte Carlo methods."""

import math

import torch
from torchquad import VEGAS, MonteCarlo, Simpson, Trapezoid, set_up_backend

set_up_backend("torch", data_type="float32")
device = "cuda" if torch.cuda.is_available() else "cpu"


def f(x):
    return torch.sin(x[:, 0]) + torch.exp(x[:, 1])


domain = torch.tensor([[0.0, 1.0], [-1.0, 1.0]], device=device)
exact = 2 * (1 - math.cos(1)) + (math.e - 1 / math.e)
errors = {}
for method, n, bound in (
    (Trapezoid(), 1089, 5e-3),
    (Simpson(), 1089, 1e-3),
    (MonteCarlo(), 4000, 0.2),
    (VEGAS(), 4000, 0.2),
):
    result = method.integrate(f, dim=2, N=n, integration_domain=domain, backend="torch")
    errors[type(method).__name__] = abs(float(result) - exact)
    assert errors[type(method).__name__] < bound, errors
scale = torch.tensor(2.0, device=device, requires_grad=True)
total = Simpson().integrate(lambda x: scale * f(x), dim=2, N=1089, integration_domain=domain, backend="torch")
total.backward()
assert abs(scale.grad.item() - exact) < 1e-2
print(f"torchquad: {errors}")
