"""Gradients of a forward pass on a side stream are used on another stream without a wait.

Kind: wrong stream in backward
Thread: https://github.com/pytorch/pytorch/issues/59844
"""

import torch


def program(fixed):
    side, user = torch.cuda.Stream(), torch.cuda.Stream()
    w = torch.ones(32, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (grad,) = torch.autograd.grad((w * 3).sum(), w)
    if fixed:
        user.wait_stream(side)
    with torch.cuda.stream(user):
        step = grad * 0.5
    torch.cuda.synchronize()
    return step
