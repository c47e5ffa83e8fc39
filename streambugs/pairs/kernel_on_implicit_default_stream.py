"""An extension launches on stream 0 whatever the caller's current stream is.

Kind: wrong stream launched on
Thread: https://github.com/openvdb/fvdb-core/pull/587
"""

import torch


def program(fixed):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        grid = torch.ones(64, device="cuda") * 2
        with torch.cuda.stream(side if fixed else torch.cuda.default_stream()):
            dense = grid + 1
        out = dense * 2
    torch.cuda.synchronize()
    return out
