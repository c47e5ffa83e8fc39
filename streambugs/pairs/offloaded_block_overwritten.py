"""A block is written again while its offload to the host is pending: only writes were tracked, not reads.

Kind: write after read
Thread: https://github.com/NVIDIA/TensorRT-LLM/pull/9056
"""

import torch


def program(fixed):
    offload = torch.cuda.Stream()
    block, host = torch.full((64,), 2.0, device="cuda"), torch.zeros(64, pin_memory=True)
    offload.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(offload):
        host.copy_(block, non_blocking=True)
        pending_read = offload.record_event()
    if fixed:
        pending_read.wait(torch.cuda.current_stream())
    block.fill_(-2.0)
    torch.cuda.synchronize()
    return host
