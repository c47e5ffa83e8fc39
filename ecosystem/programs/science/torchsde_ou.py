"""Simulates an Ornstein-Uhlenbeck process and fits its parameters through the solver."""

import torch
import torchsde

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Process(torch.nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self, mean, rate, scale):
        super().__init__()
        self.mean, self.rate, self.scale = (torch.nn.Parameter(torch.tensor(v)) for v in (mean, rate, scale))

    def f(self, t, y):
        return self.rate * (self.mean - y)

    def g(self, t, y):
        return self.scale.expand_as(y)


times = torch.linspace(0, 2, 9, device=device)
truth = Process(1.5, 2.0, 0.4).to(device)
start = torch.zeros(512, 1, device=device)
with torch.no_grad():
    path = torchsde.sdeint(truth, start, times, dt=0.05, method="euler")
mean = 1.5 * (1 - torch.exp(-2 * times))
variance = 0.16 / 4 * (1 - torch.exp(-4 * times))
assert torch.allclose(path.mean((1, 2)), mean, atol=0.1), path.mean((1, 2)) - mean
assert torch.allclose(path.var((1, 2)), variance, atol=0.02)

model = Process(0.0, 2.0, 0.4).to(device)
optimizer = torch.optim.Adam([model.mean], lr=0.3)
losses = []
for _step in range(12):
    optimizer.zero_grad()
    simulated = torchsde.sdeint(model, start[:64], times[:5], dt=0.1, method="srk")
    loss = (simulated.mean((1, 2)) - path[:5].mean((1, 2))).square().sum()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.2 * losses[0], losses
motion = torchsde.BrownianInterval(0.0, 1.0, size=(4, 1), device=device, entropy=7)
assert torch.allclose(motion(0.0, 0.4) + motion(0.4, 1.0), motion(0.0, 1.0), atol=1e-5)
torchsde.sdeint_adjoint(model, start[:8], times[:3], dt=0.2, method="euler").sum().backward()
print(f"torchsde: loss {losses[0]:.3f} to {losses[-1]:.4f}, mean {model.mean.item():.2f}")
