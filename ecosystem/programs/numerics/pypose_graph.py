"""Optimizes rotations and poses with pypose and integrates an IMU."""

import pypose
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
pose = pypose.randn_SE3(4, device=device)
assert torch.allclose((pose @ pose.Inv()).Log(), torch.zeros(4, 6, device=device), atol=1e-3)
points = torch.randn(4, 3, device=device)
homogeneous = torch.cat([points, torch.ones(4, 1, device=device)], 1)
assert torch.allclose((pose.matrix() @ homogeneous[..., None])[:, :3, 0], pose.Act(points), atol=1e-2)


class Inverse(nn.Module):
    """Poses that should invert their inputs."""

    def __init__(self):
        super().__init__()
        self.pose = pypose.Parameter(pypose.randn_SE3(4, sigma=0.1))

    def forward(self, inputs):
        """Return the error of each pose."""
        return (self.pose @ inputs).Log().tensor()


inputs = pypose.randn_SE3(4, sigma=0.3, device=device)
model = Inverse().to(device)
optimizer = pypose.optim.LM(model, strategy=pypose.optim.strategy.Adaptive(damping=1e-6))
losses = [optimizer.step(inputs).item() for _step in range(8)]
assert losses[-1] < 1e-3, losses
model = Inverse().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
gradual = []
for _step in range(40):
    loss = model(inputs).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gradual.append(loss.item())
assert gradual[-1] < 0.3 * gradual[0], gradual
imu = pypose.module.IMUPreintegrator(torch.zeros(3), pypose.identity_SO3(), torch.zeros(3), gravity=0.0).to(
    device
)
steps = torch.full((1, 10, 1), 0.1, device=device)
out = imu(
    steps, torch.zeros(1, 10, 3, device=device), torch.tensor([1.0, 0, 0], device=device).expand(1, 10, 3)
)
assert torch.allclose(out["vel"][0, -1], torch.tensor([1.0, 0, 0], device=device), atol=1e-2), out["vel"]
print(f"pypose: Levenberg-Marquardt {losses[0]:.3f} to {losses[-1]:.6f}, Adam {gradual[-1]:.4f}")
