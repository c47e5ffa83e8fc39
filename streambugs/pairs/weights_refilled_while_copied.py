"""A worker refills a buffer of expert weights once the main thread has queued its copy from it, not once that is done.

Kind: write after read, two threads
Thread: https://github.com/vllm-project/vllm/pull/32881
"""

import threading

import torch


def program(fixed):
    (buffer, layer), consumed = torch.zeros(2, 64, device="cuda"), threading.Event()
    torch.cuda.synchronize()

    def transfer():
        consumed.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            if fixed:
                copied.wait()
            buffer.add_(1)

    worker = threading.Thread(target=transfer)
    worker.start()
    layer.copy_(buffer)
    copied = torch.cuda.current_stream().record_event()
    consumed.set()
    worker.join()
    torch.cuda.synchronize()
    return layer
