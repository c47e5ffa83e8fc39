"""torch.distributed.checkpoint.filesystem: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.checkpoint.names import FileSystemReader, FileSystemWriter

__all__ = ["FileSystemReader", "FileSystemWriter"]
__getattr__ = lacking("torch.distributed.checkpoint.filesystem")
