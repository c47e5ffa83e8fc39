"""Learns an initialization for sine waves with higher (MAML), and checks second-order gradients."""

# flambeau run --float32-precision highest

import higher
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
meta = torch.optim.Adam(model.parameters(), lr=0.01)


def draw():
    """Return inputs and outputs of a sine wave with a random phase."""
    phase = 3 * torch.rand(1, device=device)
    x = 6 * torch.rand(20, 1, device=device) - 3
    return x, torch.sin(x + phase)


losses = []
for _step in range(40):
    meta.zero_grad()
    total = 0.0
    for _task in range(3):
        x, y = draw()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, steps):
            for _inner in range(2):
                steps.step(nn.functional.mse_loss(fast(x[:10]), y[:10]))
            loss = nn.functional.mse_loss(fast(x[10:]), y[10:])
            loss.backward()
            total += loss.item()
    meta.step()
    losses.append(total / 3)
assert sum(losses[-8:]) < 0.8 * sum(losses[:8]), losses

weight = nn.Linear(1, 1, bias=False).to(device)
with higher.innerloop_ctx(
    weight, torch.optim.SGD(weight.parameters(), lr=0.1), copy_initial_weights=False
) as (fast, steps):
    one = torch.ones(1, 1, device=device)
    steps.step(fast(one).pow(2).sum())  # w' = w - 0.1 * 2 w = 0.8 w
    fast(one).pow(2).sum().backward()  # d (0.8 w)^2 / d w = 1.28 w
assert torch.allclose(weight.weight.grad, 1.28 * weight.weight), weight.weight.grad
print(f"higher: loss {sum(losses[:8]) / 8:.3f} to {sum(losses[-8:]) / 8:.3f}")
