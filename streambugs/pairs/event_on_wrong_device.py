"""Metrics come from cuda:1 without blocking, but the event that the host waits for is recorded on cuda:0.

Kind: event on the wrong stream
Thread: https://github.com/meta-pytorch/torchrec/pull/3813
"""

import torch


def program(fixed):
    metric = torch.full((8,), 2.5, device="cuda:1")
    host = torch.zeros(8, pin_memory=True)
    host.copy_(metric, non_blocking=True)
    with torch.cuda.device(1 if fixed else 0):
        copied = torch.cuda.current_stream().record_event()
    copied.synchronize()
    return host.tolist()
