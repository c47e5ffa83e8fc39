"""Trains an equivariant network of e3nn on point clouds and checks that rotating the input rotates the output."""

import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet, Gate

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

irreps_in = o3.Irreps("4x0e + 2x1o")
irreps_sh = o3.Irreps.spherical_harmonics(2)
irreps_out = o3.Irreps("2x0e + 1x1o")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
        self.product = o3.FullyConnectedTensorProduct(
            irreps_in, irreps_sh, self.gate.irreps_in, shared_weights=False
        )
        self.radial = FullyConnectedNet([1, 16, self.product.weight_numel], torch.nn.functional.silu)
        self.linear = o3.Linear(self.gate.irreps_out, irreps_out)

    def forward(self, features, vectors):
        harmonics = o3.spherical_harmonics(irreps_sh, vectors, normalize=True, normalization="component")
        weights = self.radial(vectors.norm(dim=-1, keepdim=True))
        return self.linear(self.gate(self.product(features, harmonics, weights)))


model = Layer().to(device)
features, vectors = irreps_in.randn(32, -1).to(device), torch.randn(32, 3, device=device)
target = torch.cat([vectors.norm(dim=-1, keepdim=True).expand(-1, 2), vectors], -1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []
for _step in range(60):
    loss = (model(features, vectors) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], (losses[0], losses[-1])

rotation = o3.rand_matrix()
with torch.no_grad():
    before = model(features, vectors) @ irreps_out.D_from_matrix(rotation).T.to(device)
    after = model(features @ irreps_in.D_from_matrix(rotation).T.to(device), vectors @ rotation.T.to(device))
assert torch.allclose(before, after, atol=2e-2), (before - after).abs().max()
print(f"e3nn: loss {losses[0]:.3f} to {losses[-1]:.3f}, equivariant")
