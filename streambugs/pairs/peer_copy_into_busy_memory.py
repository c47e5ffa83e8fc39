"""A copy from the other GPU lands in memory that the target's own stream still writes, and does not wait for it.

Kind: cross-device default streams
Thread: https://github.com/pytorch/pytorch/issues/15568
"""

import torch


def program(fixed):
    x0, x1 = torch.zeros(64, device="cuda:0"), torch.ones(64, device="cuda:1")
    a = torch.empty(64, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.add(x1, 3, out=a)
    here, there = torch.cuda.Stream(0), torch.cuda.Stream(1)
    if fixed:
        there.wait_stream(torch.cuda.default_stream(1))
    with torch.cuda.stream(there), torch.cuda.stream(here):
        a.copy_(x0, non_blocking=True)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return a
