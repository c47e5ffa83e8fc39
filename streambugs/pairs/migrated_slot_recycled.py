"""Cache slots are migrated on a transient stream of a pool, without a fence behind the forward kernels that read them.

Kind: write after read
Thread: https://github.com/NVIDIA/TensorRT-LLM/pull/14245
"""

import torch


def program(fixed):
    execution, transient = torch.cuda.Stream(), torch.cuda.Stream()
    slots, host = torch.ones(4, 32, device="cuda"), torch.full((32,), 9.0).pin_memory()
    torch.cuda.synchronize()
    with torch.cuda.stream(execution):
        attended = slots.sum(0)
    if fixed:
        transient.wait_stream(execution)
    with torch.cuda.stream(transient):
        slots[2].copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return attended, slots
