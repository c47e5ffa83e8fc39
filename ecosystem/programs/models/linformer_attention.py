"""Trains Linformer's attention with linear cost on a copy task."""

import torch
from linformer import LinformerLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = LinformerLM(num_tokens=12, dim=32, seq_len=16, depth=1, heads=2, k=8).to(device)
tokens = torch.randint(12, (16, 16), device=device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _step in range(40):
    logits = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.3 * losses[0], losses
assert model(tokens[:, :7]).shape == (16, 7, 12)
print(f"linformer: loss {losses[0]:.3f} to {losses[-1]:.3f}")
