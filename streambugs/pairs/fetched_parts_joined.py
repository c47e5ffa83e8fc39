"""Parts are fetched without blocking and joined on the host; the compiler dropped the events that were waited for.

Kind: device-to-host read too early
Thread: https://github.com/pytorch/pytorch/issues/174695
"""

import torch


def program(fixed):
    parts, events = [], []
    for i in range(3):
        parts.append(torch.full((32,), float(i), device="cuda").to("cpu", non_blocking=True))
        events.append(torch.cuda.Event())
        events[-1].record()
    if fixed:
        for event in events:
            event.synchronize()
    return torch.cat(parts)
