"""A copy between devices on a side stream is not ordered before the target device's own work.

Kind: cross-device default streams
Thread: https://github.com/torch/cutorch/pull/192
"""

import torch


def program(fixed):
    copy = torch.cuda.Stream(0)
    source = torch.full((64,), 3.0, device="cuda:0")
    target = torch.zeros(64, device="cuda:1")
    for device in range(2):
        torch.cuda.synchronize(device)
    source.add_(1)
    if fixed:
        copy.wait_stream(torch.cuda.default_stream(0))
    with torch.cuda.stream(copy):
        target.copy_(source, non_blocking=True)
    for device in range(2):
        torch.cuda.synchronize(device)
    return target
