"""Trains a small classifier and attacks it with projected gradients, C&W and DeepFool."""

import torch
import torchattacks
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
images = torch.rand(64, 1, 8, 8).to(device)
labels = (images[:, 0, :4].mean((1, 2)) > images[:, 0, 4:].mean((1, 2))).long()
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _step in range(60):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
clean = (model(images).argmax(1) == labels).float().mean().item()
assert clean > 0.95, clean
accuracy = {}
for name, attack in (
    ("FGSM", torchattacks.FGSM(model, eps=0.1)),
    ("PGD", torchattacks.PGD(model, eps=0.1, alpha=0.02, steps=10)),
    ("MIFGSM", torchattacks.MIFGSM(model, eps=0.1, alpha=0.02, steps=10)),
    ("CW", torchattacks.CW(model, c=10, steps=20, lr=0.05)),
    ("DeepFool", torchattacks.DeepFool(model, steps=10)),
):
    adversarial = attack(images, labels)
    if name in ("FGSM", "PGD", "MIFGSM"):
        assert (adversarial - images).abs().max() <= 0.1001, name
    assert adversarial.min() >= 0 and adversarial.max() <= 1
    accuracy[name] = round((model(adversarial).argmax(1) == labels).float().mean().item(), 3)
assert all(value < 0.5 for value in accuracy.values()), accuracy
print(f"torchattacks: clean {clean:.2f}, {accuracy}")
