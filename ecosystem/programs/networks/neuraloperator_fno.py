"""Trains a Fourier neural operator on the integral of random waves and applies it to a finer grid."""

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def draw(count, size):
    """Return waves and their derivatives on a grid of one period."""
    x = torch.linspace(0, 1, size + 1, device=device)[:-1]
    a, b = torch.randn(2, count, 1, device=device)
    y = a * torch.sin(2 * torch.pi * x) + b * torch.cos(4 * torch.pi * x)
    z = a * torch.cos(2 * torch.pi * x) - 2 * b * torch.sin(4 * torch.pi * x)
    return y[:, None], z[:, None]


model = FNO(n_modes=(8,), hidden_channels=12, in_channels=1, out_channels=1, n_layers=2).to(device)
measure = LpLoss(d=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _step in range(60):
    x, y = draw(16, 32)
    loss = measure(model(x), y) / 16
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.4 * losses[0], (losses[0], losses[-1])
x, y = draw(16, 64)
fine = (measure(model(x), y) / 16).item()
assert fine < 0.6, fine
print(f"neuraloperator: loss {losses[0]:.3f} to {losses[-1]:.3f}, on a finer grid {fine:.3f}")
