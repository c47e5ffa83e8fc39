"""The plan stream copies positions that the main stream's draft kernels are still writing.

Kind: missing wait
Thread: https://github.com/sgl-project/sglang/pull/22113
"""

import torch


def program(fixed):
    plan = torch.cuda.Stream()
    positions, planned = torch.zeros(32, device="cuda"), torch.zeros(32, device="cuda")
    torch.cuda.synchronize()
    positions.add_(5)
    if fixed:
        plan.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(plan):
        planned.copy_(positions)
    torch.cuda.synchronize()
    return planned
