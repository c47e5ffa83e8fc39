"""Rearranges, reduces, packs and multiplies tensors with einops, alone and as layers of a network."""

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

images = torch.randn(2, 3, 8, 12, device=device)
patches = rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
assert patches.shape == (2, 6, 48)
back = rearrange(patches, "b (h w) (p q c) -> b c (h p) (w q)", h=2, p=4, q=4, c=3)
assert torch.equal(back, images)
assert torch.allclose(reduce(images, "b c h w -> b c", "mean"), images.mean((2, 3)), atol=1e-6)
pooled = reduce(images, "b c (h 2) (w 2) -> b c h w", "max")
assert torch.equal(pooled, torch.nn.functional.max_pool2d(images, 2))
assert torch.equal(repeat(images[0, 0], "h w -> h (2 w)"), torch.cat([images[0, 0]] * 2, 1))
packed, shapes = pack([torch.zeros(4, 5), torch.ones(4, 2, 3)], "b *")
first, second = unpack(packed, shapes, "b *")
assert first.shape == (4, 5) and second.shape == (4, 2, 3)
a, b = torch.randn(4, 5, 6, device=device), torch.randn(4, 6, 7, device=device)
assert torch.allclose(einsum(a, b, "i j k, i k l -> i j l"), a @ b, atol=1e-2)

model = torch.nn.Sequential(
    Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
    EinMix("b t i -> b t o", weight_shape="i o", bias_shape="o", i=48, o=16),
    torch.nn.GELU(),
    Reduce("b t o -> b o", "mean"),
    torch.nn.Linear(16, 2),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
labels = torch.tensor([0, 1], device=device)
losses = []
for _step in range(20):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.2 * losses[0]
print(f"einops: loss {losses[0]:.3f} to {losses[-1]:.3f}")
