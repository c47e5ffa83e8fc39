"""Query start locations are updated on the CPU for the next iteration before the copy of this one has run.

Kind: pinned buffer reused while its copy flies
Thread: https://github.com/vllm-project/vllm-ascend/pull/12079
"""

import torch


def program(fixed):
    starts = torch.arange(16, dtype=torch.float32).pin_memory()
    snapshot = starts.clone().pin_memory() if fixed else starts
    on_gpu = snapshot.to("cuda", non_blocking=True)
    starts.add_(100)
    return on_gpu
