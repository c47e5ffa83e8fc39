"""Keeps a moving average of parameters, uses it for a test and restores the parameters."""

import torch
from torch_ema import ExponentialMovingAverage

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = ExponentialMovingAverage(model.parameters(), decay=0.9)
x = torch.randn(64, 4, device=device)
y = x.sum(1, keepdim=True)
for _step in range(60):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update()
kept = model.weight.detach().clone()
with average.average_parameters():
    assert not torch.equal(model.weight, kept)
    error = (model(x) - y).square().mean().item()
assert torch.equal(model.weight, kept) and error < 0.1, error
print(f"torch-ema: error {error:.5f}")
