"""With overlapping communication the next gradients are copied into a bucket that the reduction still reads.

Kind: gradient bucket reused before its reduction
Thread: https://github.com/deepspeedai/DeepSpeed/issues/5545
"""

import torch


def program(fixed):
    reduction, results = torch.cuda.Stream(), []
    bucket = torch.zeros(128, device="cuda")
    for step in range(2):
        if fixed:
            torch.cuda.current_stream().wait_stream(reduction)
        bucket.fill_(step + 1.0)
        reduction.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reduction):
            results.append(bucket / 2)
    torch.cuda.synchronize()
    return results
