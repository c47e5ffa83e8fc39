"""The ids of the blocks to zero go up from one pinned buffer; the next batch is written before the copy has run.

Kind: pinned buffer reused while its copy flies
Thread: https://github.com/1CatAI/1Cat-vLLM/pull/406
"""

import torch


def program(fixed):
    ids, cache = torch.zeros(2, dtype=torch.int64).pin_memory(), torch.ones(8, 16, device="cuda")
    for batch in ([1, 2], [4, 7]):
        staged = torch.zeros(2, dtype=torch.int64).pin_memory() if fixed else ids
        staged.copy_(torch.tensor(batch))
        cache.index_fill_(0, staged.to("cuda", non_blocking=True), 0.0)
    torch.cuda.synchronize()
    return cache
