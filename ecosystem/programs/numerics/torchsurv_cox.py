"""Fits Cox and Weibull models with torchsurv's losses and measures concordance."""

import torch
from torch import nn
from torchsurv.loss import cox, weibull
from torchsurv.metrics.cindex import ConcordanceIndex

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(150, 4).to(device)
time = torch.exp(-(x[:, 0] - x[:, 1])) * torch.empty(150, device=device).exponential_(1.0) + 0.01
limit = torch.empty(150, device=device).exponential_(0.5)
event, time = time <= limit, torch.minimum(time, limit) + 1e-3
scores = {}
for name, function, width in (
    ("cox", cox.neg_partial_log_likelihood, 1),
    ("weibull", weibull.neg_log_likelihood_weibull, 2),
):
    model = nn.Linear(4, width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _step in range(50):
        loss = function(model(x), event, time)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], (name, losses)
    out = model(x).detach()
    risk = out if width == 1 else weibull.log_hazard(out, time)
    scores[name] = ConcordanceIndex()(risk.cpu(), event.cpu(), time.cpu()).item()
    if name == "cox":
        scores["device"] = ConcordanceIndex()(risk, event, time).item()
assert scores["cox"] > 0.7 and abs(scores["cox"] - scores["device"]) < 1e-4, scores
print(f"torchsurv: {scores}")
