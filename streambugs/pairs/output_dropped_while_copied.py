"""Sampled tokens are fetched on a copy stream, and nobody keeps the GPU tensor: its memory is given away meanwhile.

Kind: record_stream forgotten
Thread: https://github.com/vllm-project/vllm/pull/29623
"""

import torch


def program(fixed):
    copies, kept = torch.cuda.Stream(), []
    host = torch.zeros(64, pin_memory=True)
    tokens = torch.full((64,), 5.0, device="cuda")
    copies.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copies):
        host.copy_(tokens, non_blocking=True)
        done = copies.record_event()
    if fixed:
        kept.append(tokens)
    del tokens
    following = torch.full((64,), 7.0, device="cuda")
    done.synchronize()
    return host.clone(), following
