"""From PyTorch's CUDA notes, word for word: nested device guards under CUDA_VISIBLE_DEVICES. Needs two GPUs."""

import torch

print("Outside device is 0")  # On device 0 (default in most scenarios)
with torch.cuda.device(1):
    print("Inside device is 1")  # On device 1
print("Outside device is still 0")  # On device 0
