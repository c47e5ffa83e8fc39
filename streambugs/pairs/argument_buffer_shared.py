"""A kernel's one argument buffer is refilled for a launch on a second stream while the first still reads it.

Kind: write after read
Thread: https://github.com/Genesis-Embodied-AI/quadrants/pull/649
"""

import torch


def program(fixed):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    persistent, results = torch.zeros(8, device="cuda"), []
    torch.cuda.synchronize()
    for i, stream in enumerate((first, second)):
        with torch.cuda.stream(stream):
            arguments = torch.zeros(8, device="cuda") if fixed else persistent
            arguments.fill_(i + 1.0)
            results.append(arguments * 10)
    torch.cuda.synchronize()
    return results
