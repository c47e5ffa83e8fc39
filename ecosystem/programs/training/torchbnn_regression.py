"""Trains a Bayesian network and checks that its predictions vary."""

import torch
import torchbnn as bnn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.linspace(-1, 1, 64, device=device)[:, None]
y = (3 * x).sin()
model = torch.nn.Sequential(
    bnn.BayesLinear(prior_mu=0, prior_sigma=0.05, in_features=1, out_features=24),
    torch.nn.Tanh(),
    bnn.BayesLinear(prior_mu=0, prior_sigma=0.05, in_features=24, out_features=1),
).to(device)
divergence = bnn.BKLLoss(reduction="mean", last_layer_only=False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []
for _step in range(150):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean() + 0.01 * divergence(model)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.4 * losses[0], (losses[0], losses[-1])
draws = torch.stack([model(x) for _ in range(8)])
assert 0 < draws.std(0).mean() < 1
bnn.utils.freeze(model)
assert torch.equal(model(x), model(x))
print(f"torchbnn: loss {losses[0]:.3f} to {losses[-1]:.3f}")
