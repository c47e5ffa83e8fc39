"""Trains a Conformer block to find the position of a pulse."""

import torch
from conformer import Conformer

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
position = torch.randint(16, (32,), device=device)
x = 0.1 * torch.randn(32, 16, 12, device=device)
x[torch.arange(32, device=device), position] += 1
model = torch.nn.Sequential(
    Conformer(dim=12, depth=2, dim_head=8, heads=2, conv_kernel_size=5, attn_dropout=0.1),
    torch.nn.Linear(12, 1),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for _step in range(40):
    loss = torch.nn.functional.cross_entropy(model(x)[..., 0], position)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
accuracy = (model(x)[..., 0].argmax(1) == position).float().mean().item()
assert losses[-1] < 0.5 * losses[0] and accuracy > 0.8, (losses, accuracy)
print(f"conformer: loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {accuracy:.2f}")
