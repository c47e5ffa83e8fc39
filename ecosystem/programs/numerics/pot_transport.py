"""Solves optimal transport with POT's torch backend and moves points by its gradient."""

import ot
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(20, 2, device=device, dtype=torch.float64).requires_grad_()
y = torch.randn(24, 2, device=device, dtype=torch.float64) + 3
a, b = ot.unif(20, type_as=x), ot.unif(24, type_as=x)
cost = ot.dist(x, y)
assert torch.allclose(cost, torch.cdist(x, y).pow(2))
exact = ot.emd2(a, b, cost)
smooth = ot.sinkhorn(a, b, cost, 1.0)
assert torch.allclose(smooth.sum(1), a, atol=1e-6) and torch.allclose(smooth.sum(0), b, atol=1e-6)
assert (smooth * cost).sum() >= exact - 1e-9
stable = ot.bregman.sinkhorn_log(a, b, cost, 1.0)
assert torch.allclose(smooth, stable, atol=1e-6)
(gradient,) = torch.autograd.grad(exact, x)
plan = ot.emd(a, b, cost)
assert torch.allclose(gradient, 2 * (a[:, None] * x - plan @ y), atol=1e-6)
points = x.detach().clone().requires_grad_()
optimizer = torch.optim.Adam([points], lr=0.2)
losses = []
for _step in range(40):
    loss = ot.sliced_wasserstein_distance(points, y, n_projections=30, seed=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.3 * losses[0], losses
gromov = ot.gromov.gromov_wasserstein2(ot.dist(x, x), ot.dist(x.detach() + 5, x.detach() + 5), a, a)
assert abs(gromov.item()) < 0.5, gromov
center = ot.bregman.barycenter(torch.stack([a, a.roll(3)], 1), ot.dist(x.detach(), x.detach()), 1.0)
assert abs(center.sum().item() - 1) < 1e-6
print(f"POT: cost {exact.item():.3f}, distance {losses[0]:.3f} to {losses[-1]:.3f}")
