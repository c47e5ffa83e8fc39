"""Reverses gradients, as adversarial training between two domains needs it."""

import torch
from pytorch_revgrad import RevGrad

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
features = torch.nn.Linear(4, 4).to(device)
head = torch.nn.Sequential(RevGrad(alpha=0.5), torch.nn.Linear(4, 2)).to(device)
x = torch.randn(32, 4, device=device)
labels = (x[:, 0] > 0).long()
loss = torch.nn.functional.cross_entropy(head(features(x)), labels)
reversed_grad = torch.autograd.grad(loss, features.weight)[0]
plain = torch.nn.functional.cross_entropy(head[1](features(x)), labels)
grad = torch.autograd.grad(plain, features.weight)[0]
assert torch.equal(loss, plain) and torch.allclose(reversed_grad, -0.5 * grad)
optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.1)
for _step in range(20):
    loss = torch.nn.functional.cross_entropy(head(features(x)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert loss.isfinite()
print(f"pytorch-revgrad: loss {loss.item():.3f}")
