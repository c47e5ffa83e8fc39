"""The stream that consumes the input of an embedding lookup was never recorded with the allocator.

Kind: record_stream forgotten
Thread: https://github.com/meta-pytorch/torchrec/pull/4497
"""

import torch


def program(fixed):
    source, lookup = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(source):
        indices = torch.ones(512, device="cuda")
    lookup.wait_stream(source)
    with torch.cuda.stream(lookup):
        found = indices * 2
    if fixed:
        indices.record_stream(lookup)
    del indices
    with torch.cuda.stream(source):
        torch.zeros(512, device="cuda")
    torch.cuda.synchronize()
    return found
