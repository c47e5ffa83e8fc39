"""torch.distributed.checkpoint.storage: names that PyTorch defines in a module of this name."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.checkpoint.checkpoint_names import StorageReader, StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
explain_absent_names(globals(), "torch.distributed.checkpoint.storage")
