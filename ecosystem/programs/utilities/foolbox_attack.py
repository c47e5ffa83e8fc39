"""Attacks a trained classifier with foolbox and checks the sizes of the perturbations."""

import foolbox
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
points = torch.rand(200, 2).to(device)
labels = (points.sum(1) > 1).long()
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _step in range(200):
    loss = nn.functional.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
attacked = foolbox.PyTorchModel(model, bounds=(0, 1), device=device)
assert foolbox.accuracy(attacked, points, labels) > 0.97
attack = foolbox.attacks.LinfPGD(steps=20)
_, clipped, success = attack(attacked, points[:50], labels[:50], epsilons=[0.0, 0.05, 0.2, 0.6])
rates = success.float().mean(1)
assert rates[0] < 0.1 and rates[3] > 0.7, rates
assert (rates.diff() >= 0).all(), rates
assert (clipped[1] - points[:50]).abs().max() < 0.0501
boundary = foolbox.attacks.L2DeepFoolAttack(steps=20)
_, moved, success = boundary(attacked, points[:50], labels[:50], epsilons=None)
norms = (moved - points[:50]).norm(dim=1)
distance = (points[:50].sum(1) - 1).abs() / 2**0.5
assert success.float().mean() > 0.5, success
assert 0.8 < (norms[success] / distance[success]).median() < 2
print(f"foolbox: success {rates.tolist()}, median distance {norms.median():.3f}")
