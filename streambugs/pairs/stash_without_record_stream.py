"""Activations are stashed by a side stream's copy and freed at once; the allocator hands their memory out again.

Kind: record_stream forgotten
Thread: https://github.com/meta-pytorch/torchrec/pull/4231
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    x = torch.full((4096,), 5.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    host = torch.empty(4096, pin_memory=True)
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    if fixed:
        x.record_stream(side)
    del x
    torch.zeros(4096, device="cuda")
    side.synchronize()
    return host
