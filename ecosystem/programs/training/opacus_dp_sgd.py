"""Trains a convolutional classifier with differential privacy and accounts for the privacy spent."""

import warnings

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

labels = torch.arange(512) % 2
images = torch.randn(512, 1, 8, 8) + (labels[:, None, None, None] * 2.0 - 1.0) * torch.linspace(-1, 1, 8)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(288, 16),
    nn.Tanh(),
    nn.Linear(16, 2),
)
model = ModuleValidator.fix(model).to(device)  # replaces the batch normalization
assert ModuleValidator.validate(model, strict=False) == []
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=DataLoader(TensorDataset(images, labels), batch_size=64),
    noise_multiplier=0.8, max_grad_norm=1.0,
)  # fmt: skip
criterion = nn.CrossEntropyLoss()
for _epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
with torch.no_grad():
    accuracy = (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
epsilon = engine.get_epsilon(delta=1e-4)
assert accuracy > 0.85 and 0.5 < epsilon < 20, (accuracy, epsilon)

plain = nn.Linear(5, 3).to(device)
wrapped = GradSampleModule(plain)
x = torch.randn(4, 5, device=device)
wrapped(x).sum().backward()
assert torch.allclose(plain.weight.grad_sample, 4 * x[:, None, :].expand(4, 3, 5), atol=1e-5)  # of the mean
print(f"opacus: accuracy {accuracy:.3f} at epsilon {epsilon:.2f}")
