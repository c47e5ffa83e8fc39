"""torch.distributed.algorithms: training with uneven inputs, and what may happen to gradients on their way."""
