"""Typed parts of one pinned buffer hold the bookkeeping of an inference step; the next step writes them too early.

Kind: alias of pinned memory
Thread: https://github.com/NVIDIA/Megatron-LM/pull/5715
"""

import torch


def program(fixed):
    buffer, on_gpu = torch.zeros(128, dtype=torch.uint8, pin_memory=True), []
    tokens = torch.frombuffer(buffer.numpy(), dtype=torch.int64, count=8)
    lengths = torch.frombuffer(buffer.numpy(), dtype=torch.int32, count=16, offset=64)
    for step in range(2):
        tokens.fill_(step)
        lengths.fill_(step + 1)
        on_gpu.append(buffer.to("cuda", non_blocking=not fixed))
    torch.cuda.synchronize()
    return on_gpu
