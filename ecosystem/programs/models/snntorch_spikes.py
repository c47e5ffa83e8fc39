"""Trains a spiking network with surrogate gradients."""

import snntorch as snn
import torch
from snntorch import functional as SF
from snntorch import spikegen, surrogate

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(128, 10, device=device)
y = (x[:, :5].sum(1) > x[:, 5:].sum(1)).long()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        gradient = surrogate.fast_sigmoid(slope=25)
        self.fc1, self.lif1 = (
            torch.nn.Linear(10, 40),
            snn.Leaky(beta=0.9, spike_grad=gradient, learn_beta=True),
        )
        self.fc2, self.lif2 = torch.nn.Linear(40, 2), snn.Synaptic(alpha=0.8, beta=0.9, spike_grad=gradient)

    def forward(self, spikes):
        mem1 = self.lif1.init_leaky()
        syn2, mem2 = self.lif2.init_synaptic()
        out = []
        for step in spikes:
            spk1, mem1 = self.lif1(self.fc1(step), mem1)
            spk2, syn2, mem2 = self.lif2(self.fc2(spk1), syn2, mem2)
            out.append(spk2)
        return torch.stack(out)


net = Net().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
loss_function = SF.ce_rate_loss()
losses = []
for _step in range(60):
    spikes = spikegen.rate(x, num_steps=12)
    out = net(spikes)
    loss = loss_function(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert set(out.unique().tolist()) <= {0.0, 1.0}
accuracy = SF.accuracy_rate(out, y)
assert sum(losses[-5:]) < 0.95 * sum(losses[:5]) and accuracy > 0.65, (losses[0], losses[-1], accuracy)
print(f"snntorch: loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {accuracy:.3f}")
