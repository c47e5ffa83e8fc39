"""The event sent with a tensor is recorded on another stream than the one that writes the tensor.

Kind: IPC event
Thread: https://github.com/pytorch/pytorch/issues/16926
"""

import torch


def program(fixed):
    queue, writer, reader = torch.multiprocessing.SimpleQueue(), torch.cuda.Stream(), torch.cuda.Stream()
    tensor, ready = torch.zeros(64, device="cuda"), torch.cuda.Event(interprocess=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(writer):
        tensor.fill_(1.0)
    ready.record(writer if fixed else torch.cuda.current_stream())
    queue.put(tensor)
    with torch.cuda.stream(reader):
        received = queue.get()
        ready.wait()
        doubled = received * 2
    torch.cuda.synchronize()
    return doubled
