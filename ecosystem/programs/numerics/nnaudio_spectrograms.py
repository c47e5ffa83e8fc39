"""Finds tones with nnAudio's spectrograms and trains their kernels."""

import torch
from nnAudio import features

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rate = 8000
time = torch.arange(rate, device=device) / rate
tones = torch.stack([torch.sin(2 * torch.pi * pitch * time) for pitch in (440.0, 880.0)])
stft = features.STFT(n_fft=512, hop_length=256, sr=rate, output_format="Magnitude", verbose=False).to(device)
bins = stft(tones).mean(2).argmax(1) * rate / 512
assert torch.allclose(bins, torch.tensor([440.0, 880.0], device=device), atol=16), bins
plain = torch.stft(tones, 512, 256, window=torch.hann_window(512, device=device), return_complex=True).abs()
assert torch.allclose(stft(tones), plain, atol=0.5), (stft(tones) - plain).abs().max()
mel = features.MelSpectrogram(sr=rate, n_fft=512, n_mels=32, hop_length=256, verbose=False).to(device)
assert mel(tones).shape == (2, 32, 32)
cqt = features.CQT1992v2(sr=rate, fmin=220, n_bins=36, hop_length=256, verbose=False).to(device)
assert cqt(tones).mean(2).argmax(1).tolist() == [12, 24]
trainable = features.STFT(
    n_fft=128, hop_length=64, sr=rate, output_format="Magnitude", trainable=True, verbose=False
).to(device)
optimizer = torch.optim.Adam(trainable.parameters(), lr=1e-3)
losses = []
for _step in range(10):
    loss = (trainable(tones)[:, 20:] - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
print(f"nnAudio: peaks {bins.tolist()}, loss {losses[0]:.3f} to {losses[-1]:.3f}")
