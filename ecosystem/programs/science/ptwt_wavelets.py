"""Transforms signals and images with wavelets, there and back, and removes noise."""

import numpy as np
import ptwt
import pywt
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
signal = torch.randn(3, 128, dtype=torch.float64, device=device)
for wavelet in ("haar", "db4", "sym5"):
    coefficients = ptwt.wavedec(signal, pywt.Wavelet(wavelet), level=3, mode="reflect")
    expected = pywt.wavedec(signal.cpu().numpy(), wavelet, level=3, mode="reflect")
    for ours, theirs in zip(coefficients, expected, strict=True):
        assert np.allclose(ours.cpu().numpy(), theirs)
    assert torch.allclose(ptwt.waverec(coefficients, pywt.Wavelet(wavelet))[..., :128], signal)
image = torch.randn(2, 32, 32, dtype=torch.float64, device=device, requires_grad=True)
levels = ptwt.wavedec2(image, "db2", level=2, mode="zero")
back = ptwt.waverec2(levels, "db2")[..., :32, :32]
assert torch.allclose(back, image)
back.square().sum().backward()
assert torch.allclose(image.grad, 2 * image)
packet = ptwt.WaveletPacket(signal[0], "haar", mode="reflect", maxlevel=3)
assert len(packet.get_level(3)) == 8 and packet["aad"].shape[-1] == 16
matrix = ptwt.MatrixWavedec("db2", level=2)  # on the CPU: ptwt's "qr" indexes a CPU tensor by a CUDA tensor
assert torch.allclose(ptwt.MatrixWaverec("db2")(matrix(signal.cpu())), signal.cpu())
scalogram, _ = ptwt.cwt(signal, np.arange(1, 9), "mexh")
assert np.allclose(
    scalogram.cpu().numpy(), pywt.cwt(signal.cpu().numpy(), np.arange(1, 9), "mexh")[0], atol=1e-5
)
time = torch.linspace(0, 6, 128, dtype=torch.float64, device=device)
noisy = torch.sin(time) + 0.3 * signal[0]
first, *rest = ptwt.wavedec(noisy, "sym5", level=4)
clean = ptwt.waverec([first, *[torch.nn.functional.softshrink(c, 0.6) for c in rest]], "sym5")[..., :128]
before, after = [(x - torch.sin(time)).square().mean().item() for x in (noisy, clean.squeeze())]
assert after < 0.6 * before, (before, after)
print(f"ptwt: error {before:.4f} to {after:.4f}")
