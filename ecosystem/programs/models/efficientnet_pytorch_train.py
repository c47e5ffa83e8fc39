"""Builds a small EfficientNet, trains its head for some steps and extracts features."""

import torch
from efficientnet_pytorch import EfficientNet

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = EfficientNet.from_name("efficientnet-b0", num_classes=2, image_size=32, drop_connect_rate=0.0).to(
    device
)
x = torch.randn(8, 3, 32, 32, device=device)
y = torch.arange(8, device=device) % 2
x[y == 1] += 1
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for _step in range(3):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
model.eval()
features = model.extract_features(x)
assert features.shape == (8, 1280, 1, 1) and features.isfinite().all()
print(f"efficientnet-pytorch: loss {losses[0]:.3f} to {losses[-1]:.3f}")
