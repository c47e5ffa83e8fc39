"""A collective runs on a third stream; its input is released when the second has waited, and the first reuses it.

Kind: record_stream forgotten
Thread: https://github.com/pytorch/pytorch/issues/188655
"""

import torch


def program(fixed):
    custom, collective = torch.cuda.Stream(), torch.cuda.Stream()
    base = torch.zeros(1024, device="cuda")
    a = base + 1
    custom.wait_stream(torch.cuda.current_stream())
    collective.wait_stream(custom)
    with torch.cuda.stream(collective):
        a.mul_(8)
    custom.wait_stream(collective)
    if fixed:
        a.record_stream(collective)
    del a
    recycled = base + 1
    torch.cuda.synchronize()
    return recycled
