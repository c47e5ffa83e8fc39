"""A receiver gives shared memory back while its own stream still reads it: the sender's next tensor lies there.

Kind: IPC lifetime
Thread: https://github.com/inclusionAI/Awex/pull/113
"""

import torch


def program(fixed):
    queue, reader = torch.multiprocessing.SimpleQueue(), torch.cuda.Stream()
    sent = torch.ones(64, device="cuda")
    queue.put(sent)
    received = queue.get()
    reader.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(reader):
        weights = received * 2
    if fixed:
        torch.cuda.current_stream().wait_stream(reader)
    del sent, received
    other = torch.full((64,), 7.0, device="cuda")
    torch.cuda.synchronize()
    return weights, other
