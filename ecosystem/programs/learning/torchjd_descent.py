"""Trains with torchjd's Jacobian descent on two objectives that conflict."""

import itertools

import torch
import torchjd
from torch import nn
from torchjd.aggregation import MGDA

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
matrix = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]], device=device)
for aggregator in (MGDA(),):
    assert (matrix @ aggregator(matrix) >= -1e-2).all(), (aggregator, aggregator(matrix))
x = torch.randn(64, 5).to(device)
first, second = x[:, :1].sin(), -x[:, :1].sin() + 0.5
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
aggregator, optimizer = MGDA(), torch.optim.SGD(model.parameters(), lr=0.1)
rows = []
for _step in range(40):
    out = model(x)
    losses = [(out - first).pow(2).mean(), (out - second).pow(2).mean()]
    optimizer.zero_grad()
    torchjd.autojac.backward(losses, parallel_chunk_size=1)
    torchjd.autojac.jac_to_grad(model.parameters(), aggregator)
    optimizer.step()
    rows.append([loss.item() for loss in losses])
falls = [all(new <= old + 1e-3 for old, new in zip(*pair, strict=True)) for pair in itertools.pairwise(rows)]
assert sum(falls) >= 36, falls
assert sum(rows[-1]) < 0.95 * sum(rows[0]), (rows[0], rows[-1])
print(f"torchjd: losses {rows[0]} to {rows[-1]}")
