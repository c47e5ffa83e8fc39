"""Removes half of the channels of a residual network, with all layers that depend on them."""

import torch
import torch_pruning as tp

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
        )
        self.second = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16))
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head((x + self.second(x)).relu().mean((2, 3)))


model, images = Residual().to(device), torch.randn(4, 3, 8, 8, device=device)
before = tp.utils.count_ops_and_params(model, images)
pruner = tp.pruner.MagnitudePruner(
    model,
    images,
    importance=tp.importance.MagnitudeImportance(p=2),
    pruning_ratio=0.5,
    ignored_layers=[model.head],
)
pruner.step()
after = tp.utils.count_ops_and_params(model, images)
assert model.first[0].out_channels == model.second[0].in_channels == model.second[0].out_channels == 8
assert model.head.in_features == 8 and model.head.out_features == 5
assert after[0] < 0.4 * before[0] and after[1] < 0.4 * before[1], (before, after)
model(images).square().mean().backward()
assert model.first[0].weight.grad.shape == (8, 3, 3, 3)
print(f"torch-pruning: {before[1]} to {after[1]} parameters")
