"""Classifies the direction of spirals with a neural controlled differential equation."""

import torch
import torchcde

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
t = torch.linspace(0, 6, 20, device=device)
signs = torch.tensor([1.0, -1.0] * 4, device=device)
phases = torch.linspace(0, 3, 8, device=device)
paths = torch.stack(
    [torch.stack([t, (s * t + p).cos(), (s * t + p).sin()], -1) for s, p in zip(signs, phases, strict=True)]
)


class Field(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 18))

    def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.layers(z).tanh().view(*z.shape[:-1], 6, 3)


field, start, end = Field().to(device), torch.nn.Linear(3, 6).to(device), torch.nn.Linear(6, 1).to(device)
spline = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(paths))
assert torch.allclose(spline.evaluate(0.0), paths[:, 0], atol=1e-5)
parameters = [*field.parameters(), *start.parameters(), *end.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.03)
losses = []
for _step in range(25):
    z = torchcde.cdeint(
        spline,
        field,
        start(spline.evaluate(0.0)),
        spline.interval,
        adjoint=False,
        method="rk4",
        options={"step_size": 1.0},
    )
    loss = torch.nn.functional.binary_cross_entropy_with_logits(end(z[:, -1])[:, 0], (signs > 0).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.4, losses
print(f"torchcde: loss {losses[0]:.3f} to {losses[-1]:.3f}")
