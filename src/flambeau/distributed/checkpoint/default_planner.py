"""torch.distributed.checkpoint.default_planner: names that PyTorch defines in a module of this name."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.checkpoint.checkpoint_names import DefaultLoadPlanner, DefaultSavePlanner

__all__ = ["DefaultLoadPlanner", "DefaultSavePlanner"]
explain_absent_names(globals(), "torch.distributed.checkpoint.default_planner")
