"""Trains a Reformer with hashed attention and reversible layers on sequences that repeat."""

import torch
from reformer_pytorch import LSHSelfAttention, ReformerLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = ReformerLM(
    num_tokens=10,
    dim=32,
    depth=2,
    max_seq_len=32,
    heads=2,
    bucket_size=8,
    n_hashes=2,
    causal=True,
    ff_chunks=2,
).to(device)
half = torch.randint(10, (16, 8), device=device)
tokens = half.repeat(1, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for _step in range(30):
    logits = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.6 * losses[0], (losses[0], losses[-1])
attention = LSHSelfAttention(dim=32, heads=2, bucket_size=8, n_hashes=2, causal=False).to(device)
x = torch.randn(2, 32, 32, device=device, requires_grad=True)
attention(x).sum().backward()
assert x.grad.isfinite().all() and x.grad.abs().sum() > 0
print(f"reformer-pytorch: loss {losses[0]:.3f} to {losses[-1]:.3f}")
