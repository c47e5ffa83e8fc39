"""From PyTorch's CUDA notes, word for word: ones and zeros like another tensor."""

import torch

x_cpu = torch.empty(2, 3)
x_gpu = torch.empty(2, 3)

y_cpu = torch.ones_like(x_cpu)
y_gpu = torch.zeros_like(x_gpu)
