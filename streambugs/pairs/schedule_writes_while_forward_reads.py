"""The scheduling stream changes an index mapping that the forward pass before still reads.

Kind: write after read
Thread: https://github.com/sgl-project/sglang/pull/26380
"""

import torch


def program(fixed):
    schedule, forward = torch.cuda.Stream(), torch.cuda.Stream()
    mapping = torch.arange(64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(forward):
        used = mapping + 1
    if fixed:
        schedule.wait_stream(forward)
    with torch.cuda.stream(schedule):
        mapping.zero_()
    torch.cuda.synchronize()
    return used
