"""Trains a network with schedule-free AdamW and switches it to evaluation."""

import schedulefree
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
x = torch.randn(128, 4, device=device)
y = (x[:, :1] * x[:, 1:2]).tanh()
losses = {}
for name, make in (
    ("adamw", lambda p: schedulefree.AdamWScheduleFree(p, lr=0.02, warmup_steps=5)),
    ("sgd", lambda p: schedulefree.SGDScheduleFree(p, lr=0.5)),
    ("radam", lambda p: schedulefree.RAdamScheduleFree(p, lr=0.02)),
):
    for layer in (model[0], model[2]):
        layer.reset_parameters()
    optimizer = make(model.parameters())
    optimizer.train()
    first = None
    for _step in range(80):
        loss = (model(x) - y).square().mean()
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.eval()
    losses[name] = (model(x) - y).square().mean().item()
    assert losses[name] < 0.7 * first, (name, first, losses[name])
print(f"schedulefree: {losses}")
