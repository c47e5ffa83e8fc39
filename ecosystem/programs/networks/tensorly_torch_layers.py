"""Factorizes layers with tensorly-torch and trains a tensor regression layer."""

import tensorly
import tltorch
import torch
from torch import nn

tensorly.set_backend("pytorch")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
linear = nn.Linear(16, 16).to(device)
for kind in ("cp", "tucker", "blocktt"):
    layer = tltorch.FactorizedLinear.from_linear(
        linear,
        rank=64,
        auto_tensorize=False,
        in_tensorized_features=(4, 4),
        out_tensorized_features=(4, 4),
        factorization=kind,
    ).to(device)
    x = torch.randn(5, 16, device=device)
    dense = x @ layer.weight.to_matrix().T + layer.bias
    assert torch.allclose(layer(x), dense, atol=0.02), (kind, (layer(x) - dense).abs().max())
    if kind == "blocktt":
        assert torch.allclose(layer(x), linear(x), atol=0.02), (layer(x) - linear(x)).abs().max()
convolution = tltorch.FactorizedConv(3, 8, 3, order=2, rank=0.5, factorization="tucker").to(device)
assert convolution(torch.randn(2, 3, 9, 9, device=device)).shape == (2, 8, 7, 7)

x = torch.randn(64, 4, 5, 6, device=device)
y = torch.einsum("bijk,ijk->b", x, torch.ones(4, 5, 6, device=device) / 120**0.5)[:, None]
model = nn.Sequential(tltorch.TRL((4, 5, 6), (1,), rank=2, factorization="tucker")).to(device)
model[0].weight.normal_(0, 0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
losses = []
for _step in range(80):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.2 * losses[0], (losses[0], losses[-1])
print(f"tensorly-torch: loss {losses[0]:.3f} to {losses[-1]:.4f}")
