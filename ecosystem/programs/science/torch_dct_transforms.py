"""Transforms signals with discrete cosine transforms, there and back, and compares with SciPy."""

import numpy as np
import scipy.fft
import torch
import torch_dct as dct

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(4, 32, device=device, requires_grad=True)
assert np.allclose(
    dct.dct(x, norm="ortho").detach().cpu(), scipy.fft.dct(x.detach().cpu().numpy(), norm="ortho"), atol=1e-4
)
assert torch.allclose(dct.idct(dct.dct(x)), x, atol=1e-4)
assert torch.allclose(dct.idct1(dct.dct1(x)), x, atol=1e-4)
image = torch.randn(2, 8, 8, device=device)
assert torch.allclose(dct.idct_2d(dct.dct_2d(image)), image, atol=1e-4)
assert torch.allclose(dct.idct_3d(dct.dct_3d(image)), image, atol=1e-4)
layer = dct.LinearDCT(32, "dct", norm="ortho").to(device)
assert torch.allclose(layer(x), dct.dct(x, norm="ortho"), atol=2e-2)
dct.dct(x, norm="ortho").square().sum().backward()
error = (x.grad - 2 * x).abs().max().item()
assert error < 1e-4, error
print(f"torch-dct: error of the gradient {error:.1e}")
