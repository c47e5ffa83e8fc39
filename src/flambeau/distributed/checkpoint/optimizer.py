"""torch.distributed.checkpoint.optimizer: names that PyTorch defines in a module of this name."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.checkpoint.checkpoint_names import load_sharded_optimizer_state_dict

__all__ = ["load_sharded_optimizer_state_dict"]
explain_absent_names(globals(), "torch.distributed.checkpoint.optimizer")
