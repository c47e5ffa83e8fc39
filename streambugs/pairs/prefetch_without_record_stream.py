"""Batches are allocated on the prefetch stream and read on the default one; freed, they are overwritten by the next.

Kind: record_stream forgotten
Thread: https://github.com/huggingface/pytorch-image-models/pull/2784
"""

import torch


def program(fixed):
    prefetch, current, sums = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for i in range(3):
        if fixed:
            prefetch.wait_stream(current)
        with torch.cuda.stream(prefetch):
            batch = torch.full((1024,), float(i), device="cuda")
        current.wait_stream(prefetch)
        sums.append(batch.sum())
        del batch
    torch.cuda.synchronize()
    return sums
