"""Counts operations and parameters of networks."""

import torch
from ptflops import get_model_complexity_info

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(8 * 64, 10),
).to(device)  # fmt: skip
counts = {}
for backend in ("pytorch", "aten"):
    macs, parameters = get_model_complexity_info(
        model, (3, 8, 8), backend=backend, as_strings=False, print_per_layer_stat=False
    )
    assert parameters == sum(p.numel() for p in model.parameters())
    exact = 8 * 27 * 64 + 8 * 64 * 10
    assert exact <= macs <= 1.2 * exact, (backend, macs, exact)
    counts[backend] = macs
print(f"ptflops: {counts}")
