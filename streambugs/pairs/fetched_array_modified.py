"""get() on a stream of one's own returns before the copy is done; the host then modifies the array that it got.

Kind: pinned memory used through a view
Thread: https://github.com/cupy/cupy/issues/7820
"""

import torch


def program(fixed):
    stream, out = torch.cuda.Stream(), torch.zeros(64, pin_memory=True)
    array = out.numpy()
    with torch.cuda.stream(stream):
        on_gpu = torch.ones(64, device="cuda") * 3
        out.copy_(on_gpu, non_blocking=True)
    if fixed:
        stream.synchronize()
    array[:32] = 7
    torch.cuda.synchronize()
    return out
