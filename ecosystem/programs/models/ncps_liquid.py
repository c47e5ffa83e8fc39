"""Trains liquid networks (CfC and LTC) with a sparse wiring on a sine wave."""

import torch
from ncps.torch import LTC, CfC
from ncps.wirings import AutoNCP, FullyConnected

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
time = torch.linspace(0, 6, 20, device=device)
x = torch.stack([torch.sin(time), torch.cos(time)], 1)[None].repeat(4, 1, 1)
y = torch.sin(2 * time)[None, :, None].repeat(4, 1, 1)
ends = {}
for name, network in (
    ("CfC", CfC(2, AutoNCP(16, 1))),
    ("dense CfC", CfC(2, 16, proj_size=1, mode="pure")),
    ("LTC", LTC(2, FullyConnected(8, 1), ode_unfolds=3)),
    ("mixed", CfC(2, AutoNCP(12, 1), mixed_memory=True)),
):
    network = network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    losses = []
    for _step in range(30):
        out, state = network(x)
        loss = (out - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0], (name, losses[0], losses[-1])
    first, state = network(x[:, :9])
    second, _ = network(x[:, 9:], state)
    assert torch.allclose(torch.cat([first, second], 1), network(x)[0], atol=1e-4), name
    ends[name] = round(losses[-1], 4)
print(f"ncps: {ends}")
