"""Moves a cloud of points onto another one along gradients of Sinkhorn divergences and kernel norms."""

import torch
from geomloss import SamplesLoss

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

target = torch.randn(80, 2, device=device) * 0.3 + torch.tensor([2.0, -1.0], device=device)
cloud = torch.randn(64, 2, device=device, requires_grad=True)
sinkhorn = SamplesLoss("sinkhorn", p=2, blur=0.05, backend="tensorized")
shift = torch.tensor([0.7, 0.0], device=device)
moved = sinkhorn(target, target + shift).item()
assert abs(moved - 0.5 * 0.49) < 0.01, moved  # half of the squared distance
assert abs(sinkhorn(target, target).item()) < 1e-4

losses = []
for _step in range(12):
    loss = sinkhorn(cloud, target)
    (gradient,) = torch.autograd.grad(loss, cloud)
    with torch.no_grad():
        cloud -= 0.6 * len(cloud) * gradient
    losses.append(loss.item())
assert losses[-1] < 0.01 * losses[0], (losses[0], losses[-1])
assert torch.allclose(cloud.mean(0), target.mean(0), atol=0.1)

for name in ("gaussian", "laplacian", "energy"):
    kernel = SamplesLoss(name, blur=0.5, backend="tensorized")
    near, far = kernel(cloud, target).item(), kernel(cloud + 3, target).item()
    assert far > near, (name, near, far)
weights = torch.full((2, 64), 1 / 64, device=device)
batch = sinkhorn(
    weights,
    cloud.detach().repeat(2, 1, 1),
    torch.full((2, 80), 1 / 80, device=device),
    target.repeat(2, 1, 1),
)
assert torch.allclose(batch[0], batch[1])
print(f"geomloss: divergence {losses[0]:.3f} to {losses[-1]:.5f}")
