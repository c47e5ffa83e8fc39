"""The first gradient is filled on a side stream, and the first step back runs on the default one.

Kind: wrong stream in backward
Thread: https://github.com/pytorch/pytorch/pull/45787
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    grad = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        grad.fill_(3.0)
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    back = grad * 2
    torch.cuda.synchronize()
    return back
