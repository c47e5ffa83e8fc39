"""Integrates a harmonic oscillator, fits a neural ODE, and compares the adjoint method's gradients."""

import torch
from torchdiffeq import odeint, odeint_adjoint, odeint_event

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

times = torch.linspace(0, 3, 20, device=device, dtype=torch.float64)
start = torch.tensor([1.0, 0.0], device=device, dtype=torch.float64)
rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], device=device, dtype=torch.float64)
exact = torch.stack([times.cos(), times.sin()], 1)
for method in ("dopri5", "dopri8", "bosh3", "rk4", "implicit_adams"):
    options = {"step_size": 0.01} if method in ("rk4", "implicit_adams") else {}
    path = odeint(
        lambda t, y: rotation @ y, start, times, rtol=1e-8, atol=1e-8, method=method, options=options
    )
    assert (path - exact).abs().max() < 1e-4, method


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 24), torch.nn.Tanh(), torch.nn.Linear(24, 2)
        ).double()

    def forward(self, t, y):
        return self.net(y)


field = Field().to(device)
optimizer = torch.optim.Adam(field.parameters(), lr=0.03)
losses = []
for _step in range(25):
    optimizer.zero_grad()
    loss = (odeint(field, start, times, rtol=1e-4, atol=1e-4) - exact).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.3 * losses[0], losses

gradients = []
for solver in (odeint, odeint_adjoint):
    field.zero_grad()
    solver(field, start, times[:5], rtol=1e-9, atol=1e-9).sum().backward()
    gradients.append(torch.cat([p.grad.flatten() for p in field.parameters()]))
assert torch.allclose(gradients[0], gradients[1], atol=1e-5)
hit, _ = odeint_event(
    lambda t, y: rotation @ y, start, times[0], event_fn=lambda t, y: y[0], rtol=1e-9, atol=1e-9
)
assert abs(hit.item() - torch.pi / 2) < 1e-4
print(f"torchdiffeq: loss {losses[0]:.4f} to {losses[-1]:.4f}, event at {hit.item():.4f}")
