"""Batch metadata is uploaded on the scheduler's stream; the engine's kernels use it without a wait.

Kind: missing wait
Thread: https://github.com/sgl-project/mini-sglang/issues/67
"""

import torch


def program(fixed):
    scheduler, engine = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(scheduler):
        index = torch.tensor([3, 1, 2]).pin_memory().to("cuda", non_blocking=True)
    if fixed:
        engine.wait_stream(scheduler)
    with torch.cuda.stream(engine):
        out = index * 2
    torch.cuda.synchronize()
    return out
