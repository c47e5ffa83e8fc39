"""The gradient hook scales on the stream where its accumulator was made; the reduce-scatter does not wait for that.

Kind: gradient bucket read before it is full
Thread: https://github.com/NVIDIA/Megatron-LM/issues/3670
"""

import torch


def program(fixed):
    made_on, communication, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    w = torch.full((64,), 3.0, device="cuda", requires_grad=True)
    bucket, reduced = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")

    def hook(grad):
        made_on.wait_stream(main)
        with torch.cuda.stream(made_on):
            bucket.copy_(grad).mul_(0.5)

    w.register_hook(hook)
    (w * 2).sum().backward()
    communication.wait_stream(made_on if fixed else main)
    with torch.cuda.stream(communication):
        reduced.add_(bucket)
    torch.cuda.synchronize()
    return reduced
