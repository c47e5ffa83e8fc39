"""A result is copied back on the default stream, the kernel runs on the caller's, and only a free had ordered them.

Kind: device-to-host read too early
Thread: https://github.com/fastfields/fastfields-lib/issues/88
"""

import torch


def program(fixed):
    caller = torch.cuda.Stream()
    host = torch.zeros(64, pin_memory=True)
    with torch.cuda.stream(caller):
        field = torch.ones(64, device="cuda") * 6
    if fixed:
        torch.cuda.default_stream().wait_stream(caller)
    host.copy_(field, non_blocking=True)
    torch.cuda.synchronize()
    return host
