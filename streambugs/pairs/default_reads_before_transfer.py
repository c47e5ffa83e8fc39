"""A consumer on the default stream reads the target of a copy that a transfer stream makes.

Kind: missing wait
Thread: https://github.com/ROCm/pytorch/issues/3194
"""

import torch


def program(fixed):
    transfer = torch.cuda.Stream()
    source, target = torch.ones(512, pin_memory=True), torch.zeros(512, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(transfer):
        target.copy_(source, non_blocking=True)
    if fixed:
        torch.cuda.current_stream().wait_stream(transfer)
    return target * 2
