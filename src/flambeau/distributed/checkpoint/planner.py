"""torch.distributed.checkpoint.planner: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.checkpoint.checkpoint_names import LoadPlanner, SavePlanner

__all__ = ["LoadPlanner", "SavePlanner"]
explain_absent_names(globals(), "torch.distributed.checkpoint.planner")
