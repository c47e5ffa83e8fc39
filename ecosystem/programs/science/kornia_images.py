"""Filters, warps and registers images with kornia, and augments a batch."""

# flambeau run --float32-precision highest

import kornia
import kornia.augmentation as K
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

image = torch.rand(2, 3, 24, 24, device=device)
gray = kornia.color.rgb_to_grayscale(image)
weights = torch.tensor([0.299, 0.587, 0.114], device=device).view(1, 3, 1, 1)
assert torch.allclose(gray, (image * weights).sum(1, keepdim=True), atol=1e-5)
assert torch.allclose(kornia.color.lab_to_rgb(kornia.color.rgb_to_lab(image)), image, atol=1e-3)
assert torch.allclose(kornia.color.hsv_to_rgb(kornia.color.rgb_to_hsv(image)), image, atol=1e-4)

blurred = kornia.filters.gaussian_blur2d(image, (5, 5), (1.5, 1.5))
assert blurred.var() < image.var()
edges = kornia.filters.sobel(gray)
assert edges.shape == gray.shape and kornia.metrics.ssim(image, image, 5).mean() > 0.999

angle = torch.tensor([90.0, 90.0], device=device)
turned = kornia.geometry.transform.rotate(image, angle)
assert torch.allclose(turned[:, :, 1:-1, 1:-1], torch.rot90(image, 1, (2, 3))[:, :, 1:-1, 1:-1], atol=1e-3)

points = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.3]]], device=device)
matrix = torch.tensor([[[1.1, 0.1, 0.3], [-0.1, 0.9, 0.2], [0.05, 0.02, 1.0]]], device=device)
moved = kornia.geometry.transform_points(matrix, points)
estimate = kornia.geometry.homography.find_homography_dlt(points, moved)
assert torch.allclose(estimate, matrix, atol=1e-2), estimate

augment = K.AugmentationSequential(
    K.RandomHorizontalFlip(p=1.0), K.ColorJitter(0.1, 0.1, p=1.0), data_keys=["input", "mask"]
)
flipped, mask = augment(image, gray)
assert torch.allclose(mask, gray.flip(-1), atol=1e-5) and flipped.shape == image.shape

shift = torch.nn.Parameter(torch.zeros(1, 2, device=device))
smooth = kornia.filters.gaussian_blur2d(torch.rand(1, 1, 32, 32, device=device), (9, 9), (3.0, 3.0))
target = kornia.geometry.transform.translate(smooth, torch.tensor([[2.0, -1.0]], device=device))
optimizer = torch.optim.Adam([shift], lr=0.2)
for _step in range(40):
    optimizer.zero_grad()
    loss = (kornia.geometry.transform.translate(smooth, shift) - target)[..., 6:-6, 6:-6].square().mean()
    loss.backward()
    optimizer.step()
assert torch.allclose(shift.detach().cpu(), torch.tensor([[2.0, -1.0]]), atol=0.3), shift
print(f"kornia: registered shift {[round(v, 2) for v in shift.tolist()[0]]}")
