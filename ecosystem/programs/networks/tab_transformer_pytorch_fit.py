"""Trains a TabTransformer and an FT-Transformer on categories and numbers."""

import torch
from tab_transformer_pytorch import FTTransformer, TabTransformer

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
categories = torch.stack([torch.randint(size, (128,)) for size in (5, 3)], 1).to(device)
numbers = torch.randn(128, 3).to(device)
labels = ((categories[:, :1] >= 2) ^ (numbers[:, :1] > 0)).float()
ends = {}
for name, model in (
    (
        "TabTransformer",
        TabTransformer(
            categories=(5, 3), num_continuous=3, dim=16, dim_out=1, depth=1, heads=2, mlp_act=torch.nn.ReLU()
        ),
    ),
    (
        "FTTransformer",
        FTTransformer(categories=(5, 3), num_continuous=3, dim=16, dim_out=1, depth=2, heads=2),
    ),
):
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _step in range(60):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(categories, numbers), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0], (name, losses[0], losses[-1])
    ends[name] = round(losses[-1], 3)
model.eval()
logits, attention = model(categories, numbers, return_attn=True)
assert torch.allclose(attention.sum(-1), torch.ones((), device=device), atol=1e-4)
print(f"tab-transformer-pytorch: losses {ends}")
