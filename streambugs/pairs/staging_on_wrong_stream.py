"""A staging tensor is allocated on the default stream and first written on the pack stream: its old user still reads.

Kind: allocated on another stream than used
Thread: https://github.com/ROCm/ATOM/pull/1956
"""

import torch


def program(fixed):
    pack, current = torch.cuda.Stream(), torch.cuda.current_stream()
    pack.wait_stream(current)
    old = torch.full((2048,), 1.0, device="cuda")
    total = old.sum()
    del old
    with torch.cuda.stream(pack if fixed else current):
        staging = torch.empty(2048, device="cuda")
    with torch.cuda.stream(pack):
        staging.fill_(9.0)
    torch.cuda.synchronize()
    return total
