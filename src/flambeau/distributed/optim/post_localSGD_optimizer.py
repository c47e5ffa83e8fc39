"""torch.distributed.optim.post_localSGD_optimizer, which `flambeau/optim/post_local_sgd.py` defines."""

# ruff: noqa: N999  the module's name is PyTorch's

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

__all__ = ["PostLocalSGDOptimizer"]  # noqa: F822


def __getattr__(name: str) -> _Any:
    return getattr(_import_module("flambeau.optim.post_local_sgd"), name)
