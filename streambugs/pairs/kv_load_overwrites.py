"""A freed KV block is the target of a load while the attention of its last request still reads it.

Kind: write after read
Thread: https://github.com/vllm-project/vllm/issues/47282
"""

import torch


def program(fixed):
    load = torch.cuda.Stream()
    block, fresh = torch.ones(256, device="cuda"), torch.full((256,), 8.0, pin_memory=True)
    torch.cuda.synchronize()
    attention = block * 2
    if fixed:
        load.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(load):
        block.copy_(fresh, non_blocking=True)
    torch.cuda.synchronize()
    return attention
