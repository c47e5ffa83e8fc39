"""Accumulates means and root mean squares in bins over batches."""

import torch
from torch_runstats import Reduction, RunningStats

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = torch.randn(6, 50, 3, device=device)
bins = torch.randint(4, (6, 50), device=device)
mean = RunningStats(dim=(3,), reduction=Reduction.MEAN)
rms = RunningStats(dim=(3,), reduction=Reduction.RMS)
for stats in (mean, rms):
    stats.to(device=device)
    for batch, places in zip(data, bins):
        stats.accumulate_batch(batch, places)
for place in range(4):
    chosen = data[bins == place]
    assert torch.allclose(mean.current_result()[place], chosen.mean(0), atol=1e-5)
    assert torch.allclose(rms.current_result()[place], chosen.square().mean(0).sqrt(), atol=1e-5)
assert mean.n_bins == 4 and int(mean.n.flatten()[:1]) > 0
mean.reset()
assert mean.accumulate_batch(data[0]).shape == (1, 3)
print("torch-runstats: 4 bins")
