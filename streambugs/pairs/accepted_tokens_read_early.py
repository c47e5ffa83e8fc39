"""Accepted token counts come back without blocking; the next step reads them through a NumPy view taken long before.

Kind: pinned memory used through a view
Thread: https://github.com/vllm-project/vllm/pull/36013
Limit: a read through a view that was taken before the copy is not seen
"""

import torch


def program(fixed):
    accepted, copied = torch.ones(8, dtype=torch.int32, pin_memory=True), torch.cuda.Event()
    view = accepted.numpy()
    sampled = torch.arange(8, dtype=torch.int32, device="cuda") + 1
    accepted.copy_(sampled, non_blocking=True)
    copied.record()
    if fixed:
        copied.synchronize()
    return [n for n in view if n > 2]
