"""Attributes the output of a network to its inputs by several methods and checks their defining properties."""

import torch
from captum.attr import (
    DeepLift,
    FeatureAblation,
    GradientShap,
    GuidedBackprop,
    IntegratedGradients,
    LayerGradCam,
    LayerIntegratedGradients,
    Occlusion,
    Saliency,
    ShapleyValueSampling,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(device).eval()
x, baseline = torch.randn(4, 5, device=device), torch.zeros(4, 5, device=device)
with torch.no_grad():
    difference = (model(x) - model(baseline))[:, 1]

attribution, delta = IntegratedGradients(model).attribute(
    x, baseline, target=1, n_steps=200, return_convergence_delta=True
)
assert torch.allclose(attribution.sum(1), difference, atol=2e-2), delta
lift = DeepLift(model).attribute(x, baseline, target=1)
assert torch.allclose(lift.sum(1), difference, atol=1e-2)
shapley = ShapleyValueSampling(model).attribute(x, baseline, target=1, n_samples=5)
assert torch.allclose(shapley.sum(1), difference, atol=1e-2)

gradient = Saliency(model).attribute(x, target=1, abs=False)
copy = x.clone().requires_grad_()
assert torch.allclose(gradient, torch.autograd.grad(model(copy)[:, 1].sum(), copy)[0], atol=1e-5)
ablated = FeatureAblation(model).attribute(x, target=1)
zeroed = x.clone()
zeroed[:, 2] = 0
with torch.no_grad():
    assert torch.allclose(ablated[:, 2], (model(x) - model(zeroed))[:, 1], atol=1e-2)
assert GradientShap(model).attribute(x, baseline, target=1).shape == x.shape
assert GuidedBackprop(model).attribute(x, target=1).shape == x.shape

images = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(256, 2)
).to(device)
picture = torch.randn(2, 1, 8, 8, device=device)
assert LayerGradCam(images, images[0]).attribute(picture, target=0).shape == (2, 1, 8, 8)
assert LayerIntegratedGradients(images, images[0]).attribute(picture, target=0).shape == (2, 4, 8, 8)
assert Occlusion(images).attribute(picture, (1, 4, 4), strides=(1, 4, 4), target=0).shape == picture.shape
print(f"captum: attributions sum to the difference, largest delta {delta.abs().max().item() < 2e-2}")
