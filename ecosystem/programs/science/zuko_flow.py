"""Fits a conditional neural spline flow to rings and checks its density and its samples."""

import math

import torch
import zuko

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def draw(count):
    context = torch.rand(count, 1, device=device)
    angle = 2 * math.pi * torch.rand(count, 1, device=device)
    radius = 1 + context + 0.1 * torch.randn(count, 1, device=device)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1), context


flow = zuko.flows.NSF(features=2, context=1, transforms=3, hidden_features=[64, 64], bins=8).to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
losses = []
for _step in range(80):
    x, context = draw(256)
    loss = -flow(context).log_prob(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert sum(losses[-5:]) / 5 < losses[0] - 0.4, (losses[0], losses[-5:])

with torch.no_grad():
    conditional = flow(torch.tensor([0.5], device=device))
    samples = conditional.sample((1000,))
    assert samples.shape == (1000, 2)
    assert abs(samples.norm(dim=1).mean().item() - 1.5) < 0.3
    side = torch.linspace(-4, 4, 81, device=device)
    grid = torch.cartesian_prod(side, side)
    mass = conditional.log_prob(grid).exp().sum().item() * 0.01
    assert abs(mass - 1) < 0.05, mass
    transform = conditional.transform
    y, logdet = transform.call_and_ladj(samples)
    assert torch.allclose(transform.inv(y), samples, atol=1e-3)
again = zuko.flows.NSF(features=2, context=1, transforms=3, hidden_features=[64, 64], bins=8).to(device)
again.load_state_dict(flow.state_dict())
assert torch.equal(again(context).log_prob(x), flow(context).log_prob(x))
print(f"zuko: loss {losses[0]:.3f} to {losses[-1]:.3f}, mass {mass:.3f}")
