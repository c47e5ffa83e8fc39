"""A reduced gradient is copied to the host by another stream than it was allocated on, and freed when that is queued.

Kind: record_stream forgotten
Thread: https://github.com/pytorch/pytorch/pull/180665
"""

import torch


def program(fixed):
    reduce_scatter, all_reduce = torch.cuda.Stream(), torch.cuda.Stream()
    offloaded = torch.empty(2048, pin_memory=True)
    with torch.cuda.stream(reduce_scatter):
        gradient = torch.full((2048,), 1.5, device="cuda")
    all_reduce.wait_stream(reduce_scatter)
    with torch.cuda.stream(all_reduce):
        offloaded.copy_(gradient, non_blocking=True)
    kept = gradient if fixed else None
    del gradient
    with torch.cuda.stream(reduce_scatter):
        torch.zeros(2048, device="cuda")  # the next layer's
    all_reduce.synchronize()
    del kept
    return offloaded
