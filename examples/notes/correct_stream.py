"""The notes' incorrect stream example with its wait: race-free under every schedule."""

import torch

cuda = torch.device('cuda')
s = torch.cuda.Stream()  # Create a new stream.
A = torch.empty((100, 100), device=cuda).normal_(0.0, 1.0)
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    B = torch.sum(A)
A.record_stream(s)  # A lives on the default stream; its memory must not be reused before sum() is done
