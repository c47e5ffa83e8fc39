"""A worker waits for an event that the main thread has not recorded yet: such a wait orders nothing.

Kind: event not recorded yet, two threads
Thread: https://github.com/vllm-project/vllm/pull/37601
"""

import threading

import torch


def program(fixed):
    def rebalance():
        if fixed:
            recorded.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            event.wait()
            seen.copy_(loads)

    (loads, seen), event, recorded = torch.zeros(2, 64, device="cuda"), torch.cuda.Event(), threading.Event()
    torch.cuda.synchronize()
    loads.add_(1)
    (worker := threading.Thread(target=rebalance)).start()
    if not fixed:
        worker.join()  # the worker was the faster of the two
    event.record()
    recorded.set()
    worker.join()
    torch.cuda.synchronize()
    return seen
