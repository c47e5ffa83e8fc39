"""Searches learning rates with torch-lr-finder and checks that it restores the model."""

import matplotlib
import torch
from torch import nn
from torch_lr_finder import LRFinder, TrainDataLoaderIter

matplotlib.use("Agg")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(256, 4)
data = torch.utils.data.TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
before = [parameter.detach().clone() for parameter in model.parameters()]
finder = LRFinder(model, optimizer, nn.CrossEntropyLoss(), device=device)
finder.range_test(TrainDataLoaderIter(loader), end_lr=10, num_iter=40, val_loader=loader)
rates, losses = finder.history["lr"], finder.history["loss"]
assert rates == sorted(rates) and len(rates) == len(losses) > 10
assert any((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
axes, suggested = finder.plot(suggest_lr=True)
assert axes.get_xlabel() == "Learning rate" and rates[0] < suggested < 10
finder.reset()
assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
assert optimizer.param_groups[0]["lr"] == 1e-6
for group in optimizer.param_groups:
    group["lr"] = 0.02
for _epoch in range(20):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
accuracy = (model(x.to(device)).argmax(1).cpu() == data.tensors[1]).float().mean().item()
assert accuracy > 0.9, accuracy
print(f"torch-lr-finder: {len(rates)} rates, suggested {suggested:.1e}, accuracy {accuracy:.2f}")
