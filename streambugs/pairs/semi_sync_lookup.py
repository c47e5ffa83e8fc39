"""Embedding lookup on a stream of its own reads weights that the default stream's optimizer still writes.

Kind: missing wait
Thread: https://github.com/meta-pytorch/torchrec/pull/2731
"""

import torch


def program(fixed):
    lookup = torch.cuda.Stream()
    weight = torch.ones(128, device="cuda")
    torch.cuda.synchronize()
    weight.add_(1)
    with torch.cuda.stream(torch.cuda.current_stream() if fixed else lookup):
        rows = weight * 10
    torch.cuda.synchronize()
    return rows
