"""Trains a network with Adam-atan2 and its variants."""

import torch
from adam_atan2_pytorch import AdamAtan2, MuonAdamAtan2

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(128, 8, device=device)
y = x[:, :2].prod(1, keepdim=True).tanh()
ends = {}
for name in ("atan2", "foreach", "muon"):
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    if name == "muon":
        optimizer = MuonAdamAtan2([model[0].weight, model[2].weight], model.parameters(), lr=0.01)
    else:
        optimizer = AdamAtan2(model.parameters(), lr=0.01)
    losses = []
    for _step in range(60):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0], (name, losses)
    ends[name] = round(losses[-1], 4)
print(f"adam-atan2-pytorch: {ends}")
