"""Resamples, filters and splits a signal of two tones, and convolves by FFT."""

import julius
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
time = torch.arange(16000, device=device) / 16000
low, high = torch.sin(2 * torch.pi * 200 * time), torch.sin(2 * torch.pi * 4000 * time)
signal = (low + high)[None]
inner = slice(2000, -2000)
assert (julius.lowpass_filter(signal, 1000 / 16000)[0] - low)[inner].abs().max() < 1e-2
assert (julius.highpass_filter(signal, 1000 / 16000)[0] - high)[inner].abs().max() < 1e-2
bands = julius.split_bands(signal, 16000, cutoffs=[1000.0])
assert torch.allclose(bands.sum(0), signal, atol=1e-4)
half = julius.resample_frac(low[None], 2, 1)
assert (half[0] - low[::2])[500:-500].abs().max() < 1e-2
kernel = torch.randn(2, 1, 64, device=device)
expected = torch.nn.functional.conv1d(signal[None], kernel)
assert torch.allclose(julius.fft_conv1d(signal[None], kernel), expected, atol=5e-2)
weight = torch.ones(1, 1, 32, device=device, requires_grad=True)
julius.fft_conv1d(signal[None], weight).square().mean().backward()
assert weight.grad.isfinite().all() and weight.grad.abs().max() > 0
print(f"julius: {len(bands)} bands")
