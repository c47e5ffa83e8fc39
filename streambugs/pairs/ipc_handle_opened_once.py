"""A receiver waits for the sender's work when it opens a handle, and never again: later reads trust what lies there.

Kind: IPC event
Thread: https://github.com/mstar-project/mstar/pull/66
"""

import torch


def program(fixed):
    queue, writer, read = torch.multiprocessing.SimpleQueue(), torch.cuda.Stream(), []
    cache, written = torch.zeros(64, device="cuda"), torch.cuda.Event(interprocess=True)
    queue.put(cache)
    received = queue.get()
    for turn in range(2):
        writer.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(writer):
            cache.fill_(turn + 1.0)
            written.record()
        if fixed or turn == 0:
            written.wait()
        read.append(received + 0)
    torch.cuda.synchronize()
    return read
