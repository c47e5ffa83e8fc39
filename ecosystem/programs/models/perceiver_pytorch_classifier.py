"""Trains a Perceiver and a Perceiver IO on small images."""

import torch
from perceiver_pytorch import Perceiver, PerceiverIO

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Perceiver(
    input_channels=3, input_axis=2, num_freq_bands=4, max_freq=8.0, depth=2, num_latents=8, latent_dim=32,
    cross_heads=1, latent_heads=2, cross_dim_head=16, latent_dim_head=16, num_classes=2, weight_tie_layers=True,
).to(device)  # fmt: skip
x = torch.randn(16, 8, 8, 3, device=device)
y = (x[:, :4].mean((1, 2, 3)) > x[:, 4:].mean((1, 2, 3))).long()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for _step in range(20):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], losses
io = PerceiverIO(dim=16, queries_dim=8, logits_dim=5, depth=1, num_latents=4, latent_dim=16).to(device)
mask = torch.ones(2, 12, dtype=torch.bool, device=device)
out = io(torch.randn(2, 12, 16, device=device), mask=mask, queries=torch.randn(7, 8, device=device))
assert out.shape == (2, 7, 5) and out.isfinite().all()
print(f"perceiver-pytorch: loss {losses[0]:.3f} to {losses[-1]:.3f}")
