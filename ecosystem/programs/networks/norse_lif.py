"""Trains leaky integrate-and-fire cells of norse to separate two rates of input spikes."""

import norse.torch as norse
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
network = norse.SequentialState(nn.Linear(10, 20), norse.LIFCell(), nn.Linear(20, 2), norse.LICell()).to(
    device
)
labels = torch.arange(32, device=device) % 2
rates = torch.where(labels == 1, 0.6, 0.15)
spikes = (torch.rand(25, 32, 10, device=device) < rates[None, :, None]).float()
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
losses = []
for _step in range(25):
    state, voltages = None, []
    for frame in spikes:
        out, state = network(frame, state)
        voltages.append(out)
    logits = torch.stack(voltages).max(0).values
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
accuracy = (logits.argmax(1) == labels).float().mean().item()
assert losses[-1] < 0.7 * losses[0] and accuracy > 0.9, (losses[0], losses[-1], accuracy)
fired, _ = norse.LIF()(5 * torch.ones(40, 1, 3, device=device))
assert 0 < fired.sum() < 120 and set(fired.unique().tolist()) == {0.0, 1.0}
print(f"norse: loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {accuracy:.2f}")
