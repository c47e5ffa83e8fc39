"""The reduction waits for the default stream; the gradient was made on the stream of its forward pass.

Kind: wrong stream waited for
Thread: https://github.com/deepspeedai/DeepSpeed/pull/7898
"""

import torch


def program(fixed):
    forward, reduction = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(forward):
        grad = torch.ones(64, device="cuda") * 9
        awaited = torch.cuda.current_stream() if fixed else torch.cuda.default_stream()
        reduction.wait_stream(awaited)
    with torch.cuda.stream(reduction):
        bucket = grad.clone()
    torch.cuda.synchronize()
    return bucket
