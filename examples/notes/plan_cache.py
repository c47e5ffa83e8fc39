"""From PyTorch's CUDA notes, word for word: the capacity of another device's plan cache. Needs two GPUs."""

import torch

torch.backends.cuda.cufft_plan_cache[1].max_size = 10
