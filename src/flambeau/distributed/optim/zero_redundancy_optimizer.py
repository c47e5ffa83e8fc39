"""torch.distributed.optim.zero_redundancy_optimizer, which `flambeau/optim/zero_redundancy.py` defines."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import explain_absent_names

__all__ = ["ZeroRedundancyOptimizer"]  # noqa: F822


def __getattr__(name: str) -> _Any:
    return getattr(_import_module("flambeau.optim.zero_redundancy"), name)


explain_absent_names(globals(), "torch.distributed.optim.zero_redundancy_optimizer")
