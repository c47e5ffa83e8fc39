"""Block ids are staged outside of the stream context in which the transfer kernel runs.

Kind: missing wait
Thread: https://github.com/LMCache/LMCache/pull/2920
"""

import torch


def program(fixed):
    stream = torch.cuda.Stream()
    pool = torch.arange(8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream if fixed else torch.cuda.default_stream()):
        ids = torch.tensor([5, 2]).pin_memory().to("cuda", non_blocking=True)
    with torch.cuda.stream(stream):
        gathered = pool[:2] + ids
    torch.cuda.synchronize()
    return gathered
