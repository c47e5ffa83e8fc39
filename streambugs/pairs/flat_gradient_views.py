"""Contiguous gradients: two streams work on views of one flat buffer, and the views overlap.

Kind: overlapping views
Thread: https://github.com/deepspeedai/DeepSpeed/issues/7188
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    flat = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    flat[:60].fill_(1.0)
    with torch.cuda.stream(side):
        flat[60 if fixed else 50 :].fill_(2.0)
    torch.cuda.synchronize()
    return flat
