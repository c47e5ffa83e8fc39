"""Counts multiply-adds and parameters of a network with thop and compares them with a count by hand."""

import torch
from thop import clever_format, profile
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(10))

    def forward(self, x):
        return x * self.factor


model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1, bias=False),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 10),
    Scale(),
).to(device)
inputs = torch.randn(2, 3, 16, 16, device=device)


def count_scale(module, inputs, output):
    module.total_ops += output.numel()


operations, parameters = profile(model, inputs=(inputs,), custom_ops={Scale: count_scale}, verbose=False)
convolution = 2 * 8 * 16 * 16 * 3 * 9
linear = 2 * 8 * 10
pooling = 2 * 8 * (16 * 16 + 1)
assert operations == convolution + linear + pooling + 20, operations - convolution - linear - 20
assert parameters == 3 * 8 * 9 + 8 * 10 + 10 + 10 or parameters == 3 * 8 * 9 + 8 * 10 + 10, parameters
assert not hasattr(model[0], "total_ops")
text = clever_format([operations, parameters], "%.3f")
print(f"thop: {text[0]} operations, {text[1]} parameters")
