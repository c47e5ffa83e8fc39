"""Fits a flow of coupling layers to two clusters, and checks samples and their probability."""

import normflows as nf
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
flows = []
for _layer in range(4):
    flows += [
        nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 16, 16, 2], init_zeros=True)),
        nf.flows.Permute(2, mode="swap"),
    ]
model = nf.NormalizingFlow(nf.distributions.base.DiagGaussian(2), flows).to(device)
data = torch.cat([torch.randn(64, 2) * 0.3 + 2, torch.randn(64, 2) * 0.3 - 2]).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for _step in range(80):
    optimizer.zero_grad()
    loss = model.forward_kld(data)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] - 1, losses
z = torch.randn(5, 2, device=device)
x, forward = model.forward_and_log_det(z)
back, backward = model.inverse_and_log_det(x)
assert torch.allclose(back, z, atol=1e-4) and torch.allclose(forward, -backward, atol=1e-4)
samples, probability = model.sample(50)
assert torch.allclose(probability, model.log_prob(samples), atol=1e-2)
print(f"normflows: loss {losses[0]:.3f} to {losses[-1]:.3f}")
