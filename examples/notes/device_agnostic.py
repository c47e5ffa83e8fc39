"""From PyTorch's CUDA notes, word for word: one program for GPUs and for the CPU."""

import argparse
import torch

parser = argparse.ArgumentParser(description='PyTorch Example')
parser.add_argument('--disable-cuda', action='store_true',
                    help='Disable CUDA')
args = parser.parse_args()
args.device = None
if not args.disable_cuda and torch.cuda.is_available():
    args.device = torch.device('cuda')
else:
    args.device = torch.device('cpu')

x = torch.empty((8, 42), device=args.device)
print(x.device)
