"""Fits a network and an embedding with sparse gradients with MADGRAD."""

import torch
from madgrad import MADGRAD, MirrorMADGRAD
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(128, 6).to(device)
y = torch.sin(x.sum(1, keepdim=True))
ends = {}
for kind, options in ((MADGRAD, {"weight_decay": 1e-4}), (MirrorMADGRAD, {}), (MADGRAD, {"momentum": 0.0})):
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = kind(model.parameters(), lr=0.01, **options)
    losses = []
    for _step in range(80):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], (kind, options, losses[0], losses[-1])
    ends[kind.__name__, len(ends)] = round(losses[-1], 4)
table = nn.Embedding(20, 4, sparse=True).to(device)
start = table.weight.detach().clone()
optimizer = MADGRAD(table.parameters(), lr=0.1, momentum=0)
for _step in range(10):
    optimizer.zero_grad()
    table(torch.tensor([1, 3, 3], device=device)).pow(2).sum().backward()
    optimizer.step()
changed = (table.weight != start).any(1).nonzero().flatten().tolist()
assert changed == [1, 3], changed
assert table.weight[[1, 3]].abs().sum() < start[[1, 3]].abs().sum()
print(f"madgrad: losses {ends}")
