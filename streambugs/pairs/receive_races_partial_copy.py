"""A queued partial-reuse copy lands after the transfer that was received into the same block.

Kind: write after write
Thread: https://github.com/NVIDIA/TensorRT-LLM/pull/19444
"""

import torch


def program(fixed):
    cache, network = torch.cuda.Stream(), torch.cuda.Stream()
    block, old = torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(cache):
        block[:32].copy_(old[:32])
    if fixed:
        network.wait_stream(cache)
    with torch.cuda.stream(network):
        block.fill_(9.0)
    torch.cuda.synchronize()
    return block
