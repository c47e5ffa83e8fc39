"""Route views go to the GPU from one local that each iteration of the loop writes anew, before the copy has read it.

Kind: pinned memory used through a view
Thread: https://github.com/NVIDIA/cuopt/pull/1759
"""

import torch


def program(fixed):
    routes = torch.zeros(3, 4, dtype=torch.int64, device="cuda")
    staging = torch.zeros(3, 4, dtype=torch.int64, pin_memory=True)
    views = memoryview(staging.numpy())
    torch.cuda.synchronize()
    for route in range(3):
        slot = route if fixed else 0
        for field in range(4):
            views[slot, field] = 10 * route + field
        routes[route].copy_(staging[slot], non_blocking=True)
    torch.cuda.synchronize()
    return routes
