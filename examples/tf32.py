"""The loss of precision and the gain in time of TF32: the experiment of PyTorch's CUDA notes at its full size.

`flambeau run --devices 1 examples/tf32.py` takes minutes and 5 GB on a virtual GPU; `... tf32.py 1024` a second.
The notes give, for GA100: error / mean 0.0022 in 0.016 s with TF32, 0.000039 in 0.11 s without.
"""

import sys

import torch

size = int(sys.argv[1]) if len(sys.argv) > 1 else 10240
torch.manual_seed(0)
a_full = torch.randn(size, size, dtype=torch.double, device="cuda")
b_full = torch.randn(size, size, dtype=torch.double, device="cuda")
ab_full = a_full @ b_full
mean = ab_full.abs().mean()
a, b = a_full.float(), b_full.float()
print(f"{torch.cuda.get_device_name()}: {size} x {size}, mean of |ab| {mean:.4f}")

for allowed in (True, False):
    torch.backends.cuda.matmul.allow_tf32 = allowed
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    ab = a @ b
    end.record()
    error = (ab - ab_full).abs().max()
    torch.cuda.synchronize()
    seconds = start.elapsed_time(end) / 1000
    print(f"TF32 {'on ' if allowed else 'off'}: error / mean {error / mean:.6f}, {seconds:.4f} s")
