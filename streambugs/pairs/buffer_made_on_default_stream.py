"""A buffer is initialized on the default stream and used on another before that is done.

Kind: missing wait
Thread: https://github.com/NVIDIA-BioNeMo/nvMolKit/pull/55
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side if fixed else torch.cuda.default_stream()):
        counts = torch.zeros(64, device="cuda")
    with torch.cuda.stream(side):
        counts.add_(1)
    torch.cuda.synchronize()
    return counts
