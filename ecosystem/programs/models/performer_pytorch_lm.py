"""Trains a Performer and compares its attention with softmax attention."""

import torch
from performer_pytorch import FastAttention, PerformerLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 20, 16, device=device) * 0.3
exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
fast = FastAttention(dim_heads=16, nb_features=256, causal=False).to(device)
assert (fast(q, k, v) - exact).abs().max() < 0.2
model = PerformerLM(num_tokens=10, max_seq_len=16, dim=32, depth=1, heads=2, nb_features=32).to(device)
tokens = torch.randint(10, (8, 16), device=device)
mask = torch.ones_like(tokens, dtype=torch.bool)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _step in range(30):
    loss = torch.nn.functional.cross_entropy(model(tokens, mask=mask).transpose(1, 2), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
print(f"performer-pytorch: loss {losses[0]:.3f} to {losses[-1]:.3f}")
