"""The write stream backs KV up to the host before the forward stream has written it.

Kind: missing wait
Thread: https://github.com/sgl-project/sglang/pull/20611
"""

import torch


def program(fixed):
    forward, write = torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.zeros(128, pin_memory=True)
    with torch.cuda.stream(forward):
        kv = torch.ones(128, device="cuda") * 7
    if fixed:
        write.wait_stream(forward)
    with torch.cuda.stream(write):
        host.copy_(kv, non_blocking=True)
    torch.cuda.synchronize()
    return host
