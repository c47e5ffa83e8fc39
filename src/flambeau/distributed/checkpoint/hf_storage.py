"""torch.distributed.checkpoint.hf_storage: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.checkpoint.names import HuggingFaceStorageReader, HuggingFaceStorageWriter

__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]
__getattr__ = lacking("torch.distributed.checkpoint.hf_storage")
