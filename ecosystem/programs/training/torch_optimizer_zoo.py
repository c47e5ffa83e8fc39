"""Minimizes a function with fifteen optimizers, restores the state of one, and wraps one by Lookahead."""

import copy

import torch
import torch_optimizer

device = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = (
    "AdaBound", "AdaMod", "AdamP", "AggMo", "DiffGrad", "Lamb", "NovoGrad", "PID", "QHAdam", "QHM", "RAdam", "SGDP",
    "SGDW", "Shampoo", "Yogi",
)  # fmt: skip


def train(optimizer: torch.optim.Optimizer, weight: torch.Tensor, steps: int) -> float:
    for _step in range(steps):
        optimizer.zero_grad()
        loss = (weight - 3).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


for name in NAMES:
    weight = torch.ones(2, 3, device=device, requires_grad=True)
    optimizer = getattr(torch_optimizer, name)([weight], lr=0.05)
    final = train(optimizer, weight, 30)
    assert final < 4 - 1e-2, (name, final)
    twin = weight.detach().clone().requires_grad_()
    other = getattr(torch_optimizer, name)([twin], lr=0.05)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, weight, 3)
    train(other, twin, 3)
    assert torch.allclose(weight, twin, atol=1e-6), name
weight = torch.ones(2, 3, device=device, requires_grad=True)
wrapped = torch_optimizer.Lookahead(torch_optimizer.Yogi([weight], lr=0.1), k=5, alpha=0.5)
assert train(wrapped, weight, 60) < 0.5
print(f"torch-optimizer: {len(NAMES)} optimizers")
