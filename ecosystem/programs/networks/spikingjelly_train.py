"""Trains a spiking network of spikingjelly in single- and multi-step mode."""

import torch
from spikingjelly.activation_based import encoding, functional, layer, neuron, surrogate
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
images = torch.rand(48, 1, 8, 8).to(device)
labels = (images[:, 0, :, :4].mean((1, 2)) > images[:, 0, :, 4:].mean((1, 2))).long()
network = nn.Sequential(
    layer.Conv2d(1, 8, 3, padding=1, bias=False),
    layer.BatchNorm2d(8),
    neuron.IFNode(surrogate_function=surrogate.ATan()),
    layer.Flatten(),
    layer.Linear(512, 2),
    neuron.LIFNode(tau=2.0, surrogate_function=surrogate.Sigmoid(), detach_reset=True),
).to(device)
functional.set_step_mode(network, "m")
optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
losses = []
for _step in range(30):
    rates = network(images[None].repeat(6, 1, 1, 1, 1)).mean(0)
    loss = nn.functional.mse_loss(rates, nn.functional.one_hot(labels, 2).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    functional.reset_net(network)
    losses.append(loss.item())
accuracy = (rates.argmax(1) == labels).float().mean().item()
assert losses[-1] < 0.5 * losses[0] and accuracy > 0.85, (losses[0], losses[-1], accuracy)
network.eval()
many = network(images[None].repeat(3, 1, 1, 1, 1))
functional.reset_net(network)
functional.set_step_mode(network, "s")
single = torch.stack([network(images) for _step in range(3)])
assert torch.equal(many, single), (many - single).abs().max()
poisson = encoding.PoissonEncoder()
rate = torch.stack([poisson(images) for _step in range(50)]).mean(0)
assert (rate - images).abs().mean() < 0.1
print(f"spikingjelly: loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {accuracy:.2f}")
