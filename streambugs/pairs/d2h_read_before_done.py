"""A result is copied to pinned memory without blocking, and the host reads it at once.

Kind: device-to-host read too early
Thread: https://github.com/pytorch/pytorch/issues/127612
"""

import torch


def program(fixed):
    y = torch.ones(1024, device="cuda") * 3
    host = torch.empty(1024, pin_memory=True)
    host.copy_(y, non_blocking=True)
    if fixed:
        torch.cuda.synchronize()
    return host.sum().item()
