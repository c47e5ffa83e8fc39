"""Pinned memory and asynchronous copies, as PyTorch's CUDA notes describe them."""

import torch

batch = torch.randn(1 << 20).pin_memory()
assert batch.is_pinned()
x = batch.cuda(non_blocking=True)  # the copy is queued; the host goes on
y = batch.to('cuda', non_blocking=True)
back = (x + y).to('cpu', non_blocking=True)  # comes back into pinned memory
torch.cuda.synchronize()  # before the host reads it
assert torch.equal(back, batch + batch)
print('ok')
