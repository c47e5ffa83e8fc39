"""Trains invertible blocks of FrEIA as a density and checks their inverse and Jacobian."""

# flambeau run --float32-precision highest

import FrEIA.framework as framework
import FrEIA.modules as modules
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def subnet(inputs, outputs):
    """Return the network in a coupling block."""
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


flow = framework.SequenceINN(4)
for _block in range(3):
    flow.append(modules.AllInOneBlock, subnet_constructor=subnet, permute_soft=True)
flow.append(modules.ActNorm)
flow = flow.to(device)
data = torch.randn(256, 4).to(device) @ torch.tensor(
    [[2.0, 0, 0, 0], [1, 0.5, 0, 0], [0, 0, 0.3, 0], [0, 0, 1, 1]], device=device
)
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
losses = []
for _step in range(50):
    z, jacobian = flow(data)
    loss = (0.5 * z.pow(2).sum(1) - jacobian).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] - 0.5, (losses[0], losses[-1])
with torch.no_grad():
    z, jacobian = flow(data[:5])
    back, inverse = flow(z, rev=True)
    assert torch.allclose(back, data[:5], atol=0.03), (back - data[:5]).abs().max()
    assert torch.allclose(inverse, -jacobian, atol=0.03)
    columns = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0][0], data[0])
    assert torch.allclose(columns.det().abs().log(), jacobian[0], atol=0.05)
nodes = [framework.InputNode(3, 8, 8, name="input")]
nodes.append(framework.Node(nodes[-1], modules.IRevNetDownsampling, {}))
nodes.append(framework.Node(nodes[-1], modules.PermuteRandom, {"seed": 1}))
nodes.append(framework.OutputNode(nodes[-1], name="output"))
graph = framework.GraphINN(nodes).to(device)
image = torch.rand(2, 3, 8, 8, device=device)
assert torch.equal(graph(graph(image)[0], rev=True)[0], image)
print(f"FrEIA: loss {losses[0]:.3f} to {losses[-1]:.3f}")
