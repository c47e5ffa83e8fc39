"""Trains with Lightning Fabric in bfloat16, accumulates gradients, and saves and loads a checkpoint."""

import tempfile

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
fabric.launch()
fabric.seed_everything(0, verbose=False)

x = torch.randn(128, 6)
y = x.sin().sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))

losses = []
for _epoch in range(15):
    total = 0.0
    for index, (inputs, targets) in enumerate(loader):
        accumulating = index % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            output = model(inputs)
            loss = torch.nn.functional.mse_loss(output.float(), targets)
            fabric.backward(loss)
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=10.0)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
    losses.append(total)
assert losses[-1] < 0.2 * losses[0], losses

with tempfile.TemporaryDirectory() as folder:
    fabric.save(f"{folder}/state.ckpt", {"model": model, "optimizer": optimizer, "epoch": 15})
    weights = [p.detach().clone() for p in model.parameters()]
    torch.nn.init.zeros_(next(model.parameters()))
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    fabric.load(f"{folder}/state.ckpt", state)
assert state["epoch"] == 15 and all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))
print(f"lightning fabric: loss {losses[0]:.3f} to {losses[-1]:.3f}")
