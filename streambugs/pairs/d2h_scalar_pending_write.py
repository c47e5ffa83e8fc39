"""A scalar is fetched with an asynchronous copy and returned to the caller while the write is pending.

Kind: device-to-host read too early
Thread: https://github.com/NVIDIA/cudf/pull/2794
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    value = torch.zeros(1, pin_memory=True)
    with torch.cuda.stream(side):
        value.copy_(torch.full((1,), 7.0, device="cuda"), non_blocking=True)
    if fixed:
        side.synchronize()
    return value.item()
