"""torch.distributed.checkpoint.hf_storage: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import explain_absent_names
from flambeau.distributed.checkpoint.names import HuggingFaceStorageReader, HuggingFaceStorageWriter

__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]
explain_absent_names(globals(), "torch.distributed.checkpoint.hf_storage")
