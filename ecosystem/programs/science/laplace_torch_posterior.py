"""Computes a Laplace posterior of a regression network: uncertainty grows away from the data."""

import torch
from laplace import Laplace

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)  # laplace-torch multiplies the curvature with a new identity matrix
torch.manual_seed(0)
x = torch.linspace(-1, 1, 40)[:, None]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (3 * x).sin()), batch_size=20)
model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
for _epoch in range(60):
    for inputs, targets in loader:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
places = torch.tensor([[0.0], [4.0]])
for subset, structure in (("all", "full"), ("last_layer", "full"), ("all", "diag")):
    posterior = Laplace(model, "regression", subset_of_weights=subset, hessian_structure=structure)
    posterior.fit(loader)
    posterior.optimize_prior_precision()
    mean, variance = posterior(places)
    assert torch.allclose(mean, model(places), atol=1e-5)
    inside, outside = variance.flatten().tolist()
    assert 0 < inside < outside and inside < 1, (subset, structure, inside, outside)
    assert posterior.log_marginal_likelihood().isfinite()
print(f"laplace-torch: variance {inside:.4f} at the data, {outside:.4f} away from them")
