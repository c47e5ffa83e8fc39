"""A drafter's CPU buffer is reused under asynchronous scheduling; an event must protect it.

Kind: pinned buffer reused while its copy flies
Thread: https://github.com/vllm-project/vllm/pull/29288
"""

import torch


def program(fixed):
    buffer, copied = torch.zeros(64, pin_memory=True), torch.cuda.Event()
    tokens = torch.zeros(64, device="cuda")
    for step in range(2):
        if fixed:
            copied.synchronize()
        buffer.fill_(float(step + 1))
        tokens.copy_(buffer, non_blocking=True)
        copied.record()
    return tokens
