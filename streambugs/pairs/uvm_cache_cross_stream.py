"""The prefetch stream fills a cache that the data-dist stream uses, and nothing orders the two.

Kind: missing wait
Thread: https://github.com/meta-pytorch/torchrec/pull/4191
"""

import torch


def program(fixed):
    prefetch, dist = torch.cuda.Stream(), torch.cuda.Stream()
    cache = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(prefetch):
        cache.fill_(4.0)
    if fixed:
        dist.wait_stream(prefetch)
    with torch.cuda.stream(dist):
        got = cache + 1
    torch.cuda.synchronize()
    return got
