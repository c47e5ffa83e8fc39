"""Trains a local attention transformer on a periodic sequence and checks that attention stays in its window."""

import torch
from local_attention import LocalAttention, LocalTransformer

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = LocalTransformer(
    num_tokens=8, dim=32, depth=2, max_seq_len=64, causal=True, local_attn_window_size=16, heads=4, dim_head=8
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for _step in range(40):
    start = torch.randint(0, 8, (8, 1), device=device)
    loss = model((start + torch.arange(64, device=device)) % 8, return_loss=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.3 * losses[0], losses[-1]

attention = LocalAttention(dim=8, window_size=8, causal=True, look_backward=1, autopad=True).to(device)
q, k, v = (torch.randn(1, 2, 40, 8, device=device) for _ in range(3))
before = attention(q, k, v)
k2, v2 = k.clone(), v.clone()
k2[:, :, :8], v2[:, :, :8] = 5.0, 5.0  # outside the window of position 16 and later
after = attention(q, k2, v2)
assert torch.allclose(before[:, :, 16:], after[:, :, 16:], atol=1e-5)
assert not torch.allclose(before[:, :, :16], after[:, :, :16], atol=1e-2)
print(f"local-attention: loss {losses[0]:.3f} to {losses[-1]:.3f}")
