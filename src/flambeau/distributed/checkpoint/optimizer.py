"""torch.distributed.checkpoint.optimizer: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.checkpoint.names import load_sharded_optimizer_state_dict

__all__ = ["load_sharded_optimizer_state_dict"]
__getattr__ = lacking("torch.distributed.checkpoint.optimizer")
