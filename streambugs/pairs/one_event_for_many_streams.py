"""A barrier records one event on stream after stream: waiting for it waits for the last of them alone.

Kind: event reused
Thread: https://github.com/torch/cutorch/pull/222
"""

import torch


def program(fixed):
    streams, one = [torch.cuda.Stream() for _ in range(3)], torch.cuda.Event()
    parts = torch.zeros(3, 32, device="cuda")
    torch.cuda.synchronize()
    events = []
    for i, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            parts[i].fill_(i + 1.0)
        events.append(torch.cuda.Event() if fixed else one)
        events[-1].record(stream)
    for event in events:
        event.wait()
    total = parts.sum()
    torch.cuda.synchronize()
    return total
