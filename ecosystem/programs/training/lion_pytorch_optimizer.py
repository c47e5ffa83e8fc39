"""Trains with the Lion optimizer and checks one step against its formula."""

import torch
from lion_pytorch import Lion

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], device=device))
lion = Lion([parameter], lr=0.1, weight_decay=0.5, betas=(0.9, 0.99))
parameter.grad = torch.tensor([0.5, -0.25, 0.0], device=device)
lion.step()
expected = torch.tensor([1.0, -2.0, 3.0]) * (1 - 0.1 * 0.5) - 0.1 * torch.tensor([1.0, -1.0, 0.0])
assert torch.allclose(parameter.detach().cpu(), expected), parameter

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(device)
optimizer = Lion(model.parameters(), lr=3e-3, weight_decay=1e-2)
x = torch.randn(128, 8, device=device)
y = x[:, :4].argmax(1)
losses = []
for _step in range(80):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
state = optimizer.state_dict()
again = Lion(model.parameters(), lr=1.0)
again.load_state_dict(state)
assert again.param_groups[0]["lr"] == 3e-3
assert losses[-1] < 0.3 * losses[0], (losses[0], losses[-1])
print(f"lion-pytorch: loss {losses[0]:.3f} to {losses[-1]:.3f}")
