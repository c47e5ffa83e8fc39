"""Trains with pytorch-warmup's schedules and checks the learning rates."""

import pytorch_warmup
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(64, 3).to(device)
y = x @ torch.tensor([[1.0], [-2.0], [0.5]], device=device)
for kind, expected in (
    (lambda optimizer: pytorch_warmup.LinearWarmup(optimizer, 10), lambda step: min(1.0, (step + 1) / 10)),
    (
        lambda optimizer: pytorch_warmup.ExponentialWarmup(optimizer, 10),
        lambda step: 1 - 2.718281828459045 ** (-(step + 1) / 10),
    ),
    (pytorch_warmup.UntunedLinearWarmup, lambda step: min(1.0, (step + 1) * 0.001 / 2)),
):
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.999))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    warmup = kind(optimizer)
    losses = []
    for step in range(60):
        base = 0.05 * (1 + torch.cos(torch.tensor(torch.pi * step / 60)).item())
        assert abs(optimizer.param_groups[0]["lr"] - base * expected(step)) < 1e-6, step
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with warmup.dampening():
            schedule.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
print(f"pytorch-warmup: loss {losses[0]:.3f} to {losses[-1]:.3f}")
