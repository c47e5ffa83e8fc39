"""torch.multiprocessing.pool: the standard library's pool, whose queues know tensors."""

from __future__ import annotations

from multiprocessing.pool import Pool

__all__ = ["Pool"]
