"""Operations across GPUs are refused; copies are not. Needs two GPUs."""

import torch

x = torch.ones(3, device='cuda:0')
y = torch.ones(3, device='cuda:1')
try:
    x + y
except RuntimeError as error:
    print(error)
x.copy_(y * 2)
z = y.to('cuda:0') + x
w = x.cuda(1) + y
print(z, w)
