"""`to("cpu", non_blocking=True)` returns before the bytes have come; the CPU goes on computing with them.

Kind: device-to-host read too early
Thread: https://github.com/pytorch/pytorch/issues/86264
"""

import torch


def program(fixed):
    there = torch.arange(64, device="cuda").to("cpu", non_blocking=True)
    if fixed:
        torch.cuda.current_stream().synchronize()
    return (there + 1).tolist()
