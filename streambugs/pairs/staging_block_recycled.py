"""A pinned pool gets a staging block back while its copy is pending; the next owner writes through a raw pointer.

Kind: pinned memory used through a view
Thread: https://github.com/NVIDIA/cudf/issues/22284
"""

import ctypes

import torch


def program(fixed):
    pool, on_gpu = [torch.zeros(8, dtype=torch.int64, pin_memory=True) for _ in range(2)], []
    for column in range(2):
        block = pool[column if fixed else 0]
        descriptor = (ctypes.c_int64 * 8)(*range(8 * column, 8 * column + 8))
        ctypes.memmove(block.data_ptr(), descriptor, 64)
        on_gpu.append(block.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    return on_gpu
