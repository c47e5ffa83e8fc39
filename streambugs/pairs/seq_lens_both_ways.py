"""Forward waits for schedule, but schedule does not wait for forward before it updates the lengths again.

Kind: write after read
Thread: https://github.com/sgl-project/sglang/pull/26376
"""

import torch


def program(fixed):
    schedule, forward, seen = torch.cuda.Stream(), torch.cuda.Stream(), []
    seq_lens = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    for _ in range(2):
        if fixed:
            schedule.wait_stream(forward)
        with torch.cuda.stream(schedule):
            seq_lens.add_(1)
        forward.wait_stream(schedule)
        with torch.cuda.stream(forward):
            seen.append(seq_lens * 1)
    torch.cuda.synchronize()
    return seen
