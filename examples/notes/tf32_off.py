"""From PyTorch's CUDA notes, word for word: full float32 precision."""

import torch

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
