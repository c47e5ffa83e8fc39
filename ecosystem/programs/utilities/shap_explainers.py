"""Explains a trained network with shap's gradient and deep explainers."""

import numpy
import shap
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
numpy.random.seed(0)
x = torch.randn(200, 4).to(device)
y = 2 * x[:, :1] - x[:, 1:2] + 0.5 * x[:, 2:3] * x[:, 3:]
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _step in range(150):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert loss < 0.5, loss
deep = shap.DeepExplainer(model, x[:100])
values = deep.shap_values(x[:20])[..., 0]
difference = (model(x[:20]) - model(x[:100]).mean(0)).detach().cpu().numpy()[:, 0]
assert numpy.allclose(values.sum(1), difference, atol=0.03), abs(values.sum(1) - difference).max()
gradient = shap.GradientExplainer(model, x[:100])
expected = gradient.shap_values(x[:20], nsamples=300)[..., 0]
assert numpy.corrcoef(values.ravel(), expected.ravel())[0, 1] > 0.9
weights = abs(values).mean(0)
assert weights.argmax() == 0, weights
print(f"shap: mean contributions {weights.round(3).tolist()}")
