"""A compiled region writes its mutated input back on the side stream after the join that the user wrote.

Kind: event recorded before the work
Thread: https://github.com/pytorch/pytorch/issues/197416
"""

import torch


def program(fixed):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = torch.zeros(64, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        buffer = x + 1
    if not fixed:
        main.wait_stream(side)
    with torch.cuda.stream(side):
        x.copy_(buffer)
    if fixed:
        main.wait_stream(side)
    return x * 2
