"""A loader's thread allocates batches on its stream; the model drops each after its first kernel, and it is reused.

Kind: record_stream forgotten
Thread: https://github.com/facebookresearch/spdl/pull/1082
"""

import queue
import threading

import torch


def transfer(wanted, batches):
    with torch.cuda.stream(torch.cuda.Stream()):
        while step := wanted.get():
            batches.put(torch.full((64,), step, pin_memory=True).to("cuda"))


def program(fixed):
    wanted, batches, cache, out = queue.Queue(), queue.Queue(), [], []
    (loader := threading.Thread(target=transfer, args=(wanted, batches))).start()
    for step in (1, 2):
        wanted.put(step)
        cache.append(batches.get())
        out.append(cache[-1].float() / 255)
        cache = cache if fixed else []
    wanted.put(0)
    loader.join()
    torch.cuda.synchronize()
    return out
