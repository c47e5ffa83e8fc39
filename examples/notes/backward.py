"""From PyTorch's CUDA notes, word for word, with losses supplied: gradients given to backward, with a wait and without."""

import torch

strm = torch.cuda.Stream()
weight = torch.ones(1000, device='cuda', requires_grad=True)
strm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(strm):
    losses = [(weight * n).sum() for n in range(3)]
loss = losses[0]

# Safe, populating initial_grad and invoking backward are in the same stream context
with torch.cuda.stream(strm):
    loss.backward(gradient=torch.ones_like(loss))

loss = losses[1]

# Unsafe, populating initial_grad and invoking backward are in different stream contexts,
# without synchronization
initial_grad = torch.ones_like(loss)
with torch.cuda.stream(strm):
    loss.backward(gradient=initial_grad)

loss = losses[2]

# Safe, with synchronization
initial_grad = torch.ones_like(loss)
strm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(strm):
    initial_grad.record_stream(strm)
    loss.backward(gradient=initial_grad)
