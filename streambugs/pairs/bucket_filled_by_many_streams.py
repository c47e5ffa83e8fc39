"""Slices of one bucket are written on several streams; the reduction waits for the current one only.

Kind: gradient bucket read before it is full
Thread: https://github.com/deepspeedai/DeepSpeed/issues/8061
"""

import torch


def program(fixed):
    streams, reduction = [torch.cuda.Stream() for _ in range(2)], torch.cuda.Stream()
    bucket = torch.zeros(2, 64, device="cuda")
    torch.cuda.synchronize()
    for i, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            bucket[i].fill_(i + 1.0)
    for stream in streams if fixed else streams[1:]:
        reduction.wait_stream(stream)
    with torch.cuda.stream(reduction):
        reduced = bucket.sum()
    torch.cuda.synchronize()
    return reduced
