"""Host arrays are prepared for the next batch while the copies of the last one still read them.

Kind: pinned memory used through a view
Thread: https://github.com/vllm-project/vllm-ascend/pull/16428
"""

import torch


def program(fixed):
    host, on_gpu = torch.zeros(8, dtype=torch.int32, pin_memory=True), []
    table = host.numpy()
    for batch in range(2):
        for row in range(8):
            table[row] = 10 * batch + row
        source = torch.from_numpy(table.copy()).pin_memory() if fixed else host
        on_gpu.append(source.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    return on_gpu
