"""An array over pinned memory goes to the GPU without a staging copy, and its owner assigns to it at once.

Kind: pinned memory used through a view
Thread: https://github.com/cupy/cupy/pull/5155
"""

import torch


def program(fixed):
    pinned = torch.ones(64, pin_memory=True)
    array = pinned.numpy()
    source = torch.tensor(array).pin_memory() if fixed else pinned
    on_gpu = source.to("cuda", non_blocking=True)
    array[:] = 0
    torch.cuda.synchronize()
    return on_gpu
