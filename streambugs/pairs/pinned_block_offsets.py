"""Page tables go up from one persistent host buffer that the overlap scheduler overwrites an iteration ahead.

Kind: pinned buffer reused while its copy flies
Thread: https://github.com/NVIDIA/TensorRT-LLM/pull/15546
"""

import torch


def program(fixed):
    persistent = torch.zeros(128, pin_memory=True)
    tables = []
    for iteration in range(2):
        staging = torch.zeros(128, pin_memory=True) if fixed else persistent
        staging.fill_(float(iteration))
        tables.append((staging, staging.to("cuda", non_blocking=True)))
    return [table for _, table in tables]
