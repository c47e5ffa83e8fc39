"""Sequence lengths come back without blocking, and the scheduler on the host takes decisions by them.

Kind: device-to-host read too early
Thread: https://github.com/sgl-project/sglang/pull/16493
"""

import torch


def program(fixed):
    lengths = torch.tensor([3, 1, 2], device="cuda") + 1
    on_host = lengths.to("cpu", non_blocking=not fixed)
    return [n for n in on_host.tolist() if n > 2]
