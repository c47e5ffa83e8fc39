"""The optimizer steps on a stream of its own before the backward pass has written the gradients.

Kind: wrong stream in backward
Thread: https://github.com/meta-pytorch/torchrec/pull/2071
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    w = torch.ones(64, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    (w * w).sum().backward()
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        w.sub_(w.grad)
    torch.cuda.synchronize()
    return w.detach()
