"""torch.distributed.checkpoint.storage: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.checkpoint.names import StorageReader, StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
__getattr__ = lacking("torch.distributed.checkpoint.storage")
