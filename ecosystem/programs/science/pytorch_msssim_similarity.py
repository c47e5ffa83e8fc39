"""Measures the similarity of images, and restores an image by maximizing it."""

# flambeau run --float32-precision highest

import torch
from pytorch_msssim import MS_SSIM, SSIM, ms_ssim, ssim

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
image = torch.rand(2, 3, 192, 192, device=device)
noisy = (image + 0.1 * torch.randn_like(image)).clamp(0, 1)
assert abs(ssim(image, image, data_range=1.0).item() - 1) < 1e-4
value = ssim(image, noisy, data_range=1.0).item()
assert 0.5 < value < 0.999, value
assert value < ms_ssim(image, noisy, data_range=1.0).item() < 1
small = image[:1, :, :32, :32].clone()
guess = torch.full_like(small, 0.5).requires_grad_()
measure = SSIM(data_range=1.0, channel=3)
optimizer = torch.optim.Adam([guess], lr=0.05)
values = []
for _step in range(30):
    loss = 1 - measure(guess, small)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    values.append(1 - loss.item())
assert values[-1] > 0.6 > values[0], values
assert MS_SSIM(data_range=1.0, channel=3, win_size=7)(image, image).item() > 0.999
print(f"pytorch-msssim: {values[0]:.3f} to {values[-1]:.3f}")
