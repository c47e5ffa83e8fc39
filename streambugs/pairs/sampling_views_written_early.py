"""The wait for the last step's copies comes after the batch's NumPy views have been updated for the next one.

Kind: pinned memory used through a view
Thread: https://github.com/vllm-project/vllm/pull/25279
"""

import torch


def program(fixed):
    cpu, copied = torch.zeros(8, pin_memory=True), torch.cuda.Event()
    temperature, on_gpu, steps = cpu.numpy(), torch.zeros(8, device="cuda"), []
    for step in range(2):
        if fixed:
            copied.synchronize()
        temperature[:] = 0.5 + step
        copied.synchronize()
        on_gpu.copy_(cpu, non_blocking=True)
        copied.record()
        steps.append(on_gpu * 1)
    torch.cuda.synchronize()
    return steps
