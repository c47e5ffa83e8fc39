"""Counts parameters, estimates batch statistics, follows a schedule and trains with a focal loss."""

import torch
from fvcore.common.param_scheduler import CosineParamScheduler
from fvcore.nn import giou_loss, parameter_count, sigmoid_focal_loss, smooth_l1_loss
from fvcore.nn.precise_bn import update_bn_stats

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(8 * 36, 4),
).to(device)
assert parameter_count(model)[""] == 3 * 8 * 9 + 8 + 16 + 8 * 36 * 4 + 4
x = torch.randn(64, 3, 8, 8, device=device) * 2 + 1
y = (x.mean((1, 2, 3)) > 1).float()
update_bn_stats(model, [x[i : i + 16] for i in range(0, 64, 16)], num_iters=4)
assert model[1].running_mean.abs().max() > 0.01
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = CosineParamScheduler(0.3, 0.0)
losses = []
for step in range(30):
    optimizer.param_groups[0]["lr"] = schedule(step / 30)
    loss = sigmoid_focal_loss(model(x)[:, 0], y, alpha=0.5, reduction="mean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
boxes = torch.tensor([[0.0, 0, 2, 2]], device=device)
assert abs(giou_loss(boxes, boxes + 1).item() - (1 - 1 / 7 + 2 / 9)) < 1e-5
assert abs(smooth_l1_loss(boxes, boxes + 1, beta=0.5, reduction="mean").item() - 0.75) < 1e-6
print(f"fvcore: loss {losses[0]:.4f} to {losses[-1]:.4f}")
