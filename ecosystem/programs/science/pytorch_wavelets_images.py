"""Transforms images with discrete and dual-tree wavelets, there and back."""

import torch
from pytorch_wavelets import DTCWTForward, DTCWTInverse, DWTForward, DWTInverse

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
image = torch.randn(2, 3, 32, 32, device=device, requires_grad=True)
for wave, mode in (("haar", "zero"), ("db3", "symmetric"), ("db2", "periodization")):
    low, high = DWTForward(J=2, wave=wave, mode=mode).to(device)(image)
    back = DWTInverse(wave=wave, mode=mode).to(device)((low, high))
    assert torch.allclose(back[..., :32, :32], image, atol=2e-2), wave
low, high = DTCWTForward(J=3).to(device)(image)
assert high[0].shape == (2, 3, 6, 16, 16, 2)
back = DTCWTInverse().to(device)((low, high))
error = (back - image).abs().max().item()
assert error < 2e-2, error
back.square().sum().backward()
assert image.grad.isfinite().all()
print(f"pytorch-wavelets: error {error:.5f}")
