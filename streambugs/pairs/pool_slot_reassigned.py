"""A finished request's row of the pool is given to a new one while the forward stream still reads it.

Kind: write after read
Thread: https://github.com/sgl-project/sglang/pull/18746
"""

import torch


def program(fixed):
    forward = torch.cuda.Stream()
    pool = torch.ones(4, 32, device="cuda")
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        read = pool[2] * 3
    if fixed:
        torch.cuda.current_stream().wait_stream(forward)
    pool[2].fill_(-1)
    torch.cuda.synchronize()
    return read
