"""The host refills the sampling buffer between the launch of a copy and its execution.

Kind: pinned buffer reused while its copy flies
Thread: https://github.com/lightseekorg/tokenspeed/pull/376
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    shared, kept, out = torch.zeros(8, pin_memory=True), [], []
    for step in range(2):
        buffer = torch.zeros(8, pin_memory=True) if fixed else shared
        kept.append(buffer.fill_(step + 0.5))
        with torch.cuda.stream(side):
            out.append(buffer.to("cuda", non_blocking=True))
    side.synchronize()
    return out
