"""Minimizes one problem with many optimizers of pytorch_optimizer, and with its wrappers and schedules."""

import torch
from pytorch_optimizer import SAM, CosineAnnealingWarmupRestarts, Lookahead, create_optimizer, load_optimizer

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.linspace(-2, 2, 64, device=device)[:, None]
y = x.square() - 1


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)


def fit(optimizer, model, steps=60):
    losses = []
    for _step in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses[0], losses[-1]


names = ["adabelief", "adabound", "adamp", "adan", "diffgrad", "lamb", "lion", "madgrad", "radam"]
for name in names:
    model = build()
    before, after = fit(load_optimizer(name)(model.parameters(), lr=2e-2), model)
    assert after < 0.9 * before, (name, before, after)

model = build()
before, after = fit(Lookahead(load_optimizer("adamp")(model.parameters(), lr=2e-2)), model)
assert after < before, (before, after)

model = build()
sam = SAM(model.parameters(), torch.optim.SGD, lr=0.05, rho=0.05)
losses = []
for _step in range(40):
    (model(x) - y).square().mean().backward()
    sam.first_step(zero_grad=True)
    loss = (model(x) - y).square().mean()
    loss.backward()
    sam.second_step(zero_grad=True)
    losses.append(loss.item())
assert losses[-1] < losses[0]

optimizer = create_optimizer(build(), "adan", lr=1e-2, weight_decay=1e-3)
schedule = CosineAnnealingWarmupRestarts(
    optimizer, first_cycle_steps=10, max_lr=0.1, min_lr=0.01, warmup_steps=5
)
rates = []
for _step in range(10):
    schedule.step()
    rates.append(optimizer.param_groups[0]["lr"])
assert max(rates) <= 0.1 + 1e-9 and rates[0] < max(rates)
print(f"pytorch_optimizer: {len(names)} optimizers converge; SAM {losses[0]:.3f} to {losses[-1]:.3f}")
