"""Adds the positional encodings of one to three dimensions and checks their values."""

import torch
from positional_encodings.torch_encodings import (
    PositionalEncoding1D,
    PositionalEncoding2D,
    PositionalEncoding3D,
    PositionalEncodingPermute1D,
    Summer,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(2, 12, 8, device=device)
encoding = PositionalEncoding1D(8).to(device)(x)
position = torch.arange(12, dtype=torch.float32, device=device)
assert torch.allclose(encoding[0, :, 0], position.sin(), atol=1e-5)
assert torch.allclose(encoding[1, :, 3], (position * 10000 ** (-0.25)).cos(), atol=1e-5)
permuted = PositionalEncodingPermute1D(8).to(device)(x.transpose(1, 2))
assert torch.equal(permuted, encoding.transpose(1, 2))
flat = PositionalEncoding2D(8).to(device)
image = torch.randn(1, 5, 6, 8, device=device)
assert torch.equal(flat(image)[0, :, 0, :4], flat(image)[0, :, 3, :4])
solid = PositionalEncoding3D(10).to(device)(torch.randn(1, 3, 4, 5, 10, device=device))
assert solid.shape == (1, 3, 4, 5, 10) and solid.abs().max() <= 1
summer = Summer(PositionalEncoding1D(8)).to(device)
weight = torch.nn.Linear(8, 12, bias=False).to(device)
optimizer = torch.optim.Adam(weight.parameters(), lr=0.05)
losses = []
for _step in range(60):
    logits = weight(summer(torch.zeros_like(x)))[0]
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(12, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], losses
print(f"positional-encodings: loss {losses[0]:.3f} to {losses[-1]:.3f}")
