"""Trains networks of two widths with mup's parametrization and compares their losses."""

import torch
from mup import MuAdam, MuReadout, MuSGD, init, set_base_shapes
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Network(nn.Module):
    """A perceptron whose last layer is a MuReadout."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, width)
        self.last = MuReadout(width, 1, readout_zero_init=False)

    def forward(self, x):
        """Return the prediction."""
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


ends = {}
for kind in (MuAdam, MuSGD):
    for width in (16, 64):
        torch.manual_seed(0)
        x = torch.randn(128, 8).to(device)
        y = torch.sin(x.sum(1, keepdim=True))
        model = Network(width)
        set_base_shapes(model, Network(8), delta=Network(12))
        for parameter in model.parameters():
            if parameter.ndim == 2:
                init.uniform_(parameter, -0.3, 0.3)
        assert model.second.weight.infshape.width_mult() == width / 8
        model.to(device)
        optimizer = kind(model.parameters(), lr=0.01 if kind is MuAdam else 0.5)
        losses = []
        for _step in range(60):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        ends[kind.__name__, width] = (losses[0], losses[-1])
assert all(last < 0.9 * first for first, last in ends.values()), ends
rates = sorted({group["lr"] for group in MuAdam(model.parameters(), lr=0.01).param_groups})
assert rates == [0.00125, 0.01], rates
print(f"mup: {ends}")
