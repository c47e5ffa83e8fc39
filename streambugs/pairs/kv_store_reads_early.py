"""A KV block is offloaded to the CPU on a store stream before the kernel that computes it has run.

Kind: missing wait
Thread: https://github.com/vllm-project/vllm/issues/45704
"""

import torch


def program(fixed):
    store = torch.cuda.Stream()
    block, host = torch.zeros(256, device="cuda"), torch.zeros(256, pin_memory=True)
    torch.cuda.synchronize()
    block.fill_(6.0)
    if fixed:
        store.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(store):
        host.copy_(block, non_blocking=True)
    torch.cuda.synchronize()
    return host
