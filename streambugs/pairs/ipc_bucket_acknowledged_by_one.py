"""A sender refills a shared bucket once one receiver has copied it; the other receiver still reads the old weights.

Kind: IPC lifetime
Thread: https://github.com/modelscope/ms-swift/pull/10207
"""

import torch


def program(fixed):
    queue, readers = torch.multiprocessing.SimpleQueue(), [torch.cuda.Stream(), torch.cuda.Stream()]
    bucket, weights = torch.zeros(64, device="cuda"), []
    queue.put(bucket)
    received = queue.get()
    for turn in range(2):
        bucket.fill_(turn + 1.0)
        for reader in readers:
            reader.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(reader):
                weights.append(received + 0)
        for reader in readers if fixed else readers[:1]:
            torch.cuda.current_stream().wait_stream(reader)
    torch.cuda.synchronize()
    return weights
