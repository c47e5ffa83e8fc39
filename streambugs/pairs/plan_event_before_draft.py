"""There is an event and a wait, but the event is recorded before the draft that it should stand for.

Kind: event recorded before the work
Thread: https://github.com/sgl-project/sglang/issues/21942
"""

import torch


def program(fixed):
    plan, drafted = torch.cuda.Stream(), torch.cuda.Event()
    tree = torch.zeros(32, device="cuda")
    torch.cuda.synchronize()
    if not fixed:
        drafted.record()
    tree.fill_(2.0)
    if fixed:
        drafted.record()
    plan.wait_event(drafted)
    with torch.cuda.stream(plan):
        copied = tree.clone()
    torch.cuda.synchronize()
    return copied
