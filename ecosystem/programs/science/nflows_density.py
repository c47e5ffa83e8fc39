"""Fits a masked autoregressive flow to two moons and checks that it is a density that can be inverted."""

import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows.base import Flow
from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
from nflows.transforms.base import CompositeTransform
from nflows.transforms.permutations import ReversePermutation
from sklearn.datasets import make_moons

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

transforms = []
for _layer in range(3):
    transforms.append(ReversePermutation(features=2))
    transforms.append(MaskedAffineAutoregressiveTransform(features=2, hidden_features=32))
flow = Flow(CompositeTransform(transforms), StandardNormal(shape=[2])).to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
data = torch.tensor(make_moons(1024, noise=0.1, random_state=0)[0], dtype=torch.float32, device=device)
losses = []
for step in range(120):
    batch = data[(step % 4) * 256 : (step % 4 + 1) * 256]
    loss = -flow.log_prob(inputs=batch).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] - 0.5, (losses[0], losses[-1])

with torch.no_grad():
    noise = flow.transform_to_noise(data[:64])
    back, _ = flow._transform.inverse(noise)
    assert torch.allclose(back, data[:64], atol=1e-3), (back - data[:64]).abs().max()
    samples = flow.sample(500)
    assert samples.shape == (500, 2)
    assert torch.allclose(samples.mean(0), data.mean(0), atol=0.25), samples.mean(0)
    side = torch.linspace(-4, 5, 91, device=device)
    mass = flow.log_prob(torch.cartesian_prod(side, side)).exp().sum().item() * 0.01
    assert abs(mass - 1) < 0.05, mass
print(f"nflows: loss {losses[0]:.3f} to {losses[-1]:.3f}, mass {mass:.3f}")
