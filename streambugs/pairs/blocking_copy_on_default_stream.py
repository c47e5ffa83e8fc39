"""A synchronous copy runs on the default stream, which a non-blocking stream's kernel does not wait for.

Kind: missing wait
Thread: https://github.com/bheisler/RustaCUDA/issues/59
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    x = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.fill_(5.0)
    if fixed:
        side.synchronize()
    return x.cpu()
