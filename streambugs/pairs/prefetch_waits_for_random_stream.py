"""A new stream is taken for the default one, so the forward pass waits for nothing.

Kind: wrong stream waited for
Thread: https://github.com/meta-pytorch/torchrec/pull/3306
"""

import torch


def program(fixed):
    prefetch = torch.cuda.Stream()
    with torch.cuda.stream(prefetch):
        rows = torch.ones(64, device="cuda") * 3
    torch.cuda.current_stream().wait_stream(prefetch if fixed else torch.cuda.Stream())
    out = rows * 2
    torch.cuda.synchronize()
    return out
