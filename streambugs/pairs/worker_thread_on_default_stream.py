"""An intervention runs in a worker thread, whose current stream is the default one; the model runs on another.

Kind: wrong stream in a worker thread
Thread: https://github.com/ndif-team/nnsight/pull/638
"""

import threading

import torch


def program(fixed):
    compute, saved = torch.cuda.Stream(), []
    hidden = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(compute):
        hidden.add_(1)

    def intervene():
        with torch.cuda.stream(compute if fixed else torch.cuda.current_stream()):
            saved.append(hidden.clone())

    worker = threading.Thread(target=intervene)
    worker.start()
    worker.join()
    torch.cuda.synchronize()
    return saved[0]
