"""torch.distributed.optim.zero_redundancy_optimizer, which `flambeau/optim/zero_redundancy.py` defines."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking

__all__ = ["ZeroRedundancyOptimizer"]  # noqa: F822


def __getattr__(name: str) -> _Any:
    if name in __all__:
        return getattr(_import_module("flambeau.optim.zero_redundancy"), name)
    return lacking("torch.distributed.optim.zero_redundancy_optimizer")(name)
