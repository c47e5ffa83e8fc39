"""Keeps an exponential moving average of a network in training and checks it against the formula."""

import torch
from ema_pytorch import EMA

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
ema = EMA(model, beta=0.9, update_after_step=0, update_every=1, inv_gamma=1.0, power=1e9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
weight, average, losses = model[0].weight, None, []
for step in range(40):
    x = torch.randn(32, 4, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update()
    value = weight.detach().cpu().double()
    average = value if step <= 1 else 0.9 * average + 0.1 * value
    losses.append(loss.item())
shadow = ema.ema_model[0].weight.detach().cpu().double()
assert torch.allclose(shadow, average, atol=1e-3), (shadow - average).abs().max()
assert losses[-1] < 0.5 * losses[0]

x = torch.randn(8, 4, device=device)
with torch.no_grad():
    assert not torch.equal(ema(x), model(x))
    copy = EMA(model, beta=0.9)
    copy.load_state_dict(ema.state_dict())
    assert torch.equal(copy(x), ema(x))
    ema.copy_params_from_ema_to_model()
    assert torch.equal(ema(x), model(x))
print(f"ema-pytorch: loss {losses[0]:.3f} to {losses[-1]:.3f}, average as computed")
