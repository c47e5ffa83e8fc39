"""From PyTorch's CUDA notes, word for word: a missing wait. It runs; some schedules give a wrong sum; Flambeau names both lines."""

import torch

cuda = torch.device('cuda')
s = torch.cuda.Stream()  # Create a new stream.
A = torch.empty((100, 100), device=cuda).normal_(0.0, 1.0)
with torch.cuda.stream(s):
    # sum() may start execution before normal_() finishes!
    B = torch.sum(A)
