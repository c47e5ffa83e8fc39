"""A copy to the GPU that changes the dtype converts on the host, and so reads its source before the copy that fills it.

Kind: copy that converts
Thread: https://github.com/pytorch/pytorch/issues/121320
"""

import torch


def program(fixed):
    counts = torch.ones(4, device="cuda") * 10
    pinned = torch.zeros(4, pin_memory=True)
    whole = torch.zeros(4, dtype=torch.long, device="cuda")
    pinned.copy_(counts, non_blocking=True)
    whole.copy_(pinned if fixed else pinned.to(torch.long), non_blocking=True)
    torch.cuda.synchronize()
    return whole
