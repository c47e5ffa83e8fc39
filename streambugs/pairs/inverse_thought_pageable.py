"""A matrix is taken for pageable, whose copies block, and is changed after its upload; its memory is page-locked.

Kind: alias of pinned memory
Thread: https://github.com/QMCPACK/qmcpack/pull/4004
"""

import torch


def program(fixed):
    queue, on_gpu = torch.cuda.Stream(), torch.zeros(8, 8, device="cuda")
    inverse = torch.from_numpy(torch.eye(8).pin_memory().numpy())
    torch.cuda.synchronize()
    with torch.cuda.stream(queue):
        on_gpu.copy_(inverse, non_blocking=True)
    if fixed:
        queue.synchronize()
    inverse.mul_(2)
    torch.cuda.synchronize()
    return on_gpu
