"""From PyTorch's CUDA notes, word for word, with work put in: measuring with events."""

import torch

start_event = torch.cuda.Event(enable_timing=True)
end_event = torch.cuda.Event(enable_timing=True)
start_event.record()

# Run some things here
x = torch.ones(1 << 20, device='cuda')
y = x * 2 + 1

end_event.record()
torch.cuda.synchronize()  # Wait for the events to be recorded!
elapsed_time_ms = start_event.elapsed_time(end_event)
print(f'{elapsed_time_ms:.3f} ms')
