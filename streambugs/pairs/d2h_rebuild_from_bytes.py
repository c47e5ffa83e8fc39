"""Received bytes go to the CPU without blocking and are unpacked into tensors by the next statement.

Kind: device-to-host read too early
Thread: https://github.com/stepfun-ai/SteptronOss/pull/38
"""

import torch


def program(fixed):
    received = torch.arange(32, device="cuda").mul_(2)
    raw = received.to("cpu", non_blocking=True)
    if fixed:
        torch.cuda.synchronize()
    out = torch.empty(32, dtype=torch.int64)
    out.copy_(raw)
    return out
