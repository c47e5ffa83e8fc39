"""Receives are grouped and launched when the group ends, but each one's event is recorded before: it waits for nothing.

Kind: event recorded before the work
Thread: https://github.com/pytorch/pytorch/pull/82450
"""

import torch


def program(fixed):
    nccl, done = torch.cuda.Stream(), torch.cuda.Event()
    sent, received = torch.full((64,), 3.0, device="cuda"), torch.zeros(64, device="cuda")
    nccl.wait_stream(torch.cuda.current_stream())
    if not fixed:
        done.record(nccl)  # as the receive is asked for
    with torch.cuda.stream(nccl):
        received.copy_(sent)  # as the group ends
    if fixed:
        done.record(nccl)
    torch.cuda.current_stream().wait_event(done)
    activations = received * 2
    torch.cuda.synchronize()
    return activations
