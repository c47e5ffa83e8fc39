"""Augments volumes with torchio, aggregates patches, and feeds them to a network."""

import torch
import torchio
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
image = torch.rand(1, 16, 16, 16)
label = (image > 0.5).float()
subject = torchio.Subject(image=torchio.ScalarImage(tensor=image), label=torchio.LabelMap(tensor=label))
transform = torchio.Compose(
    [
        torchio.RescaleIntensity((0, 1)),
        torchio.RandomFlip(axes=(0, 1, 2), flip_probability=1.0),
        torchio.RandomNoise(std=0.05),
        torchio.RandomGamma(),
        torchio.CropOrPad(12),
        torchio.ZNormalization(),
    ]
)
out = transform(subject)
assert out.image.shape == (1, 12, 12, 12) and abs(out.image.data.mean()) < 1e-5
flip = torchio.Flip(axes=(0,))
assert torch.equal(flip(flip(subject)).image.data, image)

sampler = torchio.GridSampler(subject, patch_size=8, patch_overlap=4)
aggregator = torchio.GridAggregator(sampler, overlap_mode="average")
model = nn.Conv3d(1, 1, 1).to(device)
with torch.no_grad():
    for batch in torchio.SubjectsLoader(sampler, batch_size=9):
        patches = batch["image"][torchio.DATA].to(device)
        aggregator.add_batch(model(patches).cpu(), batch[torchio.LOCATION])
    whole = model(image[None].to(device))[0].cpu()
assert torch.allclose(aggregator.get_output_tensor(), whole, atol=1e-3)
queue = torchio.Queue(
    torchio.SubjectsDataset([subject] * 3, transform=transform), 8, 4, torchio.data.UniformSampler(6)
)
sizes = [tuple(batch["image"][torchio.DATA].shape) for batch in torchio.SubjectsLoader(queue, batch_size=4)]
assert sizes == [(4, 1, 6, 6, 6)] * 3, sizes
print(f"torchio: {len(sampler)} patches aggregated, {len(sizes)} batches of a queue")
