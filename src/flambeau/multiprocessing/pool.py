"""torch.multiprocessing.pool: the standard library's pool with queues that can transport tensors."""

from __future__ import annotations

from multiprocessing.pool import Pool

__all__ = ["Pool"]
