"""Computes individual gradients, their variance and curvature in one backward pass, and trains with curvature."""

import torch
from backpack import backpack, extend
from backpack.extensions import KFAC, BatchGrad, BatchL2Grad, DiagGGNExact, Variance

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = extend(
    torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(64, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 3),
    ).to(device)
)  # fmt: skip
loss_function = extend(torch.nn.CrossEntropyLoss())
x = torch.randn(32, 1, 8, 8, device=device)
y = (x.mean((1, 2, 3)) * 8).round().clamp(-1, 1).long() + 1

loss = loss_function(model(x), y)
with backpack(BatchGrad(), BatchL2Grad(), Variance(), DiagGGNExact(), KFAC(mc_samples=1)):
    loss.backward()
for parameter in model.parameters():
    assert torch.allclose(parameter.grad_batch.sum(0), parameter.grad, atol=1e-4)
    norms = (parameter.grad_batch.flatten(1) ** 2).sum(1)
    assert torch.allclose(parameter.batch_l2, norms, rtol=1e-2, atol=1e-6)
    assert parameter.variance.shape == parameter.diag_ggn_exact.shape == parameter.shape
    assert (parameter.diag_ggn_exact >= 0).all()
single = torch.autograd.grad(loss_function(model(x[3:4]), y[3:4]) / 32, model[4].weight)[0]
assert torch.allclose(model[4].weight.grad_batch[3], single, atol=1e-4)
a, b = model[6].weight.kfac
assert a.shape == (3, 3)
assert b.shape == (16, 16)

losses = []
for _step in range(60):
    loss = loss_function(model(x), y)
    model.zero_grad()
    with backpack(DiagGGNExact()):
        loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad / (parameter.diag_ggn_exact + 0.1)
    losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], (losses[0], losses[-1])
print(f"backpack: loss {losses[0]:.3f} to {losses[-1]:.3f}")
