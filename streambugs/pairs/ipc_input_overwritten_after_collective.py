"""A collective returns when its own rank is done; the caller overwrites the input that a peer still reads by handle.

Kind: IPC lifetime
Thread: https://github.com/ROCm/aiter/pull/4082
"""

import torch


def program(fixed):
    queue, ranks = torch.multiprocessing.SimpleQueue(), [torch.cuda.Stream(), torch.cuda.Stream()]
    inputs, outputs = [torch.full((64,), i + 1.0, device="cuda") for i in range(2)], []
    for tensor in inputs:
        queue.put(tensor)
    peers = [queue.get(), queue.get()]
    torch.cuda.synchronize()
    for rank in ranks:
        with torch.cuda.stream(rank):
            outputs.append(peers[0] + peers[1])
    if fixed:
        ranks[0].wait_stream(ranks[1])
    with torch.cuda.stream(ranks[0]):
        inputs[0].fill_(float("nan"))
    torch.cuda.synchronize()
    return outputs
