"""torch.distributed.checkpoint.planner: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.checkpoint.names import LoadPlanner, SavePlanner

__all__ = ["LoadPlanner", "SavePlanner"]
__getattr__ = lacking("torch.distributed.checkpoint.planner")
