"""Trains an equivariant graph network on distances and checks that it is equivariant under rotations."""

import torch
from egnn_pytorch import EGNN, EGNN_Network

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

layer = EGNN(dim=16, edge_dim=2, norm_coors=True, coor_weights_clamp_value=2.0, num_nearest_neighbors=4).to(
    device
)
features, places = torch.randn(2, 10, 16, device=device), torch.randn(2, 10, 3, device=device)
edges = torch.randn(2, 10, 10, 2, device=device)
mask = torch.ones(2, 10, dtype=torch.bool, device=device)
mask[1, 8:] = False
rotation = torch.linalg.qr(torch.randn(3, 3, device=device))[0]
shift = torch.randn(1, 1, 3, device=device)
out, moved = layer(features, places @ rotation + shift, edges, mask=mask)
out0, moved0 = layer(features, places, edges, mask=mask)
assert torch.allclose(out, out0, atol=2e-2), (out - out0).abs().max()
assert torch.allclose(moved, moved0 @ rotation + shift, atol=2e-2)

model = EGNN_Network(
    num_tokens=5, num_positions=12, dim=16, depth=2, num_nearest_neighbors=4, coor_weights_clamp_value=2.0
).to(device)
head = torch.nn.Linear(16, 1).to(device)
tokens = torch.randint(5, (8, 12), device=device)
points = torch.randn(8, 12, 3, device=device)
wanted = torch.cdist(points, points).mean((1, 2))[:, None]
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=3e-3)
losses = []
for _step in range(25):
    hidden, _ = model(tokens, points)
    loss = (head(hidden.mean(1)) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.3 * losses[0], (losses[0], losses[-1])
print(f"egnn-pytorch: loss {losses[0]:.3f} to {losses[-1]:.4f}")
