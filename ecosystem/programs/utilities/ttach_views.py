"""Averages the predictions of a network over transformed views of images."""

import torch
import ttach

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
image = torch.rand(2, 3, 16, 16, device=device)
model = torch.nn.Conv2d(3, 1, 1).to(device)
views = ttach.Compose([ttach.HorizontalFlip(), ttach.Rotate90([0, 90]), ttach.Multiply([0.9, 1.0])])
segment = ttach.SegmentationTTAWrapper(model, ttach.aliases.d4_transform(), merge_mode="mean")
assert torch.allclose(segment(image), model(image), atol=2e-2)
total = torch.zeros(2, 1, 16, 16, device=device)
for view in views:
    total += view.deaugment_mask(model(view.augment_image(image)))
assert len(views) == 8 and total.isfinite().all()
classify = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 256, 4)).to(device)
mean = ttach.ClassificationTTAWrapper(classify, ttach.aliases.hflip_transform())(image)
expected = (classify(image) + classify(image.flip(3))) / 2
assert torch.allclose(mean, expected, atol=2e-2)
print(f"ttach: {len(views)} views")
