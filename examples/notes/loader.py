"""From PyTorch's CUDA notes, word for word, with a loader supplied: batches to a GPU."""

import torch

train_loader = [torch.randn(4, 3) for _ in range(3)]

cuda0 = torch.device('cuda:0')  # CUDA GPU 0
for i, x in enumerate(train_loader):
    x = x.to(cuda0)
