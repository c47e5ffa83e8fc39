"""Cache membership is published on the default stream; the engine's non-blocking stream reads it unordered.

Kind: wrong stream launched on
Thread: https://github.com/Neroued/ninfer/issues/210
"""

import torch


def program(fixed):
    engine = torch.cuda.Stream()
    table, new = torch.zeros(16, device="cuda"), torch.ones(16, pin_memory=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(engine if fixed else torch.cuda.default_stream()):
        table.copy_(new, non_blocking=True)
    with torch.cuda.stream(engine):
        looked_up = table * 4
    torch.cuda.synchronize()
    return looked_up
