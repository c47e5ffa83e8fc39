"""The source of a non-blocking upload is changed before the upload has read it.

Kind: pinned buffer reused while its copy flies
Thread: https://github.com/pytorch/tutorials/pull/3261
"""

import torch


def program(fixed):
    source = torch.ones(1024, pin_memory=True)
    there = source.to("cuda", non_blocking=True)
    if fixed:
        torch.cuda.synchronize()
    source.fill_(-1)
    return there
