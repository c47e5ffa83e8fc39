"""torch.distributed.checkpoint.default_planner: PyTorch writes these names here."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.checkpoint.names import DefaultLoadPlanner, DefaultSavePlanner

__all__ = ["DefaultLoadPlanner", "DefaultSavePlanner"]
__getattr__ = lacking("torch.distributed.checkpoint.default_planner")
