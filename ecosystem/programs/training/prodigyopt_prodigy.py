"""Trains with Prodigy, which estimates its own learning rate."""

import torch
from prodigyopt import Prodigy

device = "cuda" if torch.cuda.is_available() else "cpu"
rates = []
for options in (
    {},
    {"safeguard_warmup": True, "weight_decay": 0.01},
    {"slice_p": 3},
    {"use_bias_correction": True},
):
    torch.manual_seed(0)
    x = torch.randn(128, 10, device=device)
    y = x @ torch.arange(10.0, device=device)[:, None] / 10
    model = torch.nn.Linear(10, 1).to(device)
    optimizer = Prodigy(model.parameters(), lr=1.0, d0=1e-3, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    losses = []
    for _step in range(120):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0], (options, losses[0], losses[-1])
    rates.append(float(optimizer.param_groups[0]["d"]))
    assert rates[-1] > 2e-3
print(f"prodigyopt: rates {[round(rate, 4) for rate in rates]}")
