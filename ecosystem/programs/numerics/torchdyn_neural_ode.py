"""Trains a neural ODE of torchdyn on two circles and compares its solvers with an exact solution."""

import torch
from torch import nn
from torchdyn.core import NeuralODE
from torchdyn.numerics import odeint

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
angle = 6.28 * torch.rand(100, device=device)
labels = torch.arange(100, device=device) % 2
points = (1 + labels)[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
field = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 3))
model = nn.Sequential(
    NeuralODE(field, sensitivity="adjoint", solver="rk4", solver_adjoint="rk4", return_t_eval=False),
).to(device)
head = nn.Linear(3, 2).to(device)
span = torch.linspace(0, 1, 5, device=device)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.02)
lifted = torch.cat([points, points.pow(2).sum(1, keepdim=True)], 1)
losses = []
for _step in range(25):
    logits = head(model[0](lifted, span)[-1])
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
start = torch.ones(1, device=device)
times = torch.linspace(0, 2, 21, device=device)
for solver in ("euler", "rk4", "dopri5", "tsit5"):
    _, path = odeint(lambda t, x: -x, start, times, solver=solver, atol=1e-6, rtol=1e-6)
    error = (path[:, 0] - torch.exp(-times)).abs().max()
    assert error < (0.05 if solver == "euler" else 1e-4), (solver, error)
print(f"torchdyn: loss {losses[0]:.3f} to {losses[-1]:.3f}")
