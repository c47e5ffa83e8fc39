"""Trains a decoder of x-transformers with rotary positions and continues a sequence."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=10, max_seq_len=32,
        attn_layers=Decoder(dim=48, depth=2, heads=4, attn_dim_head=12, rotary_pos_emb=True, use_rmsnorm=True),
    )
).to(device)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for _step in range(50):
    start = torch.randint(0, 10, (16, 1), device=device)
    loss = model((start + 3 * torch.arange(20, device=device)) % 10)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

model.eval()
prompt = torch.tensor([[1, 4, 7], [2, 5, 8]], device=device)
generated = model.generate(prompt, 8, temperature=0.0)
expected = (prompt[:, :1] + 3 * torch.arange(3, 11, device=device)) % 10
assert torch.equal(generated, expected), generated.tolist()

encoder = TransformerWrapper(
    num_tokens=10,
    max_seq_len=16,
    attn_layers=Encoder(dim=32, depth=1, heads=2, ff_glu=True, alibi_pos_bias=True),
).to(device)
assert encoder(prompt, return_embeddings=True).shape == (2, 3, 32)
print(f"x-transformers: loss {losses[0]:.3f} to {losses[-1]:.3f}")
