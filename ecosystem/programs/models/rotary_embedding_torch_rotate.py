"""Rotates queries and keys and checks that their products depend on relative positions only."""

import torch
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

rotary = RotaryEmbedding(dim=16).to(device)
query = torch.randn(16, device=device).expand(1, 2, 12, 16)
key = torch.randn(16, device=device).expand(1, 2, 12, 16)
q, k = rotary.rotate_queries_or_keys(query), rotary.rotate_queries_or_keys(key)
scores = (q[:, :, :, None] * k[:, :, None, :]).sum(-1)[0, 0]
for offset in range(-11, 12):
    diagonal = scores.diagonal(offset)
    assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-3), offset
assert torch.allclose(q.norm(dim=-1), query.norm(dim=-1), atol=1e-4)

late = rotary.rotate_queries_or_keys(query[:, :, :1], offset=5)
assert torch.allclose(late[:, :, 0], q[:, :, 5], atol=1e-5)

axial = RotaryEmbedding(dim=8, freqs_for="pixel", max_freq=10).to(device)
frequencies = axial.get_axial_freqs(4, 6)
image = torch.randn(1, 4, 6, 32, device=device)
turned = apply_rotary_emb(frequencies, image)
assert turned.shape == image.shape and not torch.equal(turned, image)

learned = RotaryEmbedding(dim=16, learned_freq=True).to(device)
learned.rotate_queries_or_keys(query).square()[..., 0].sum().backward()
gradient = learned.freqs.grad.abs().sum().item()
assert gradient > 0
print(f"rotary-embedding-torch: relative positions only, gradient of frequencies {gradient:.3f}")
