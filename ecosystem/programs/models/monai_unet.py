"""Trains MONAI's UNet with the Dice loss to segment discs, and predicts with a sliding window."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss, DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def discs(count, size=32):
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    center = torch.rand(count, 2, 1, 1) * (size / 2) + size / 4
    mask = (((grid - center) ** 2).sum(1, keepdim=True) < 36).float()
    return (mask + 0.3 * torch.randn(count, 1, size, size)).to(device), mask.to(device)


model = UNet(
    spatial_dims=2, in_channels=1, out_channels=1, channels=(8, 16, 32), strides=(2, 2), num_res_units=1
).to(device)
loss_function = DiceLoss(sigmoid=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for _step in range(60):
    images, masks = discs(8)
    optimizer.zero_grad()
    loss = loss_function(model(images), masks)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

model.eval()
metric = DiceMetric(include_background=True, reduction="mean")
images, masks = discs(4, 48)
with torch.no_grad():
    logits = sliding_window_inference(images, (32, 32), 4, model, overlap=0.25)
    metric(y_pred=(logits.sigmoid() > 0.5).float(), y=masks)
    combined = DiceCELoss(sigmoid=True)(logits, masks)
dice = metric.aggregate().item()
assert dice > 0.6 and losses[-1] < 0.7 * losses[0] and combined.isfinite(), (dice, losses[-1])
print(f"monai: Dice loss {losses[0]:.3f} to {losses[-1]:.3f}, Dice {dice:.3f}")
