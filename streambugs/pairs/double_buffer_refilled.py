"""A prefetch buffer goes back to the free list when its copy is issued, not when it is done.

Kind: write after read on a double buffer
Thread: https://github.com/BVLC/caffe/pull/2998
"""

import torch


def program(fixed):
    loader, tops = torch.cuda.Stream(), []
    buffer = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    for batch in range(2):
        with torch.cuda.stream(loader):
            buffer.fill_(batch + 1.0)
        torch.cuda.current_stream().wait_stream(loader)
        tops.append(buffer.clone())
        if fixed:
            loader.wait_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    return tops
