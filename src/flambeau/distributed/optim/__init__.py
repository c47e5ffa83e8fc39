"""torch.distributed.optim: optimizers of several ranks, which `flambeau.optim` defines, a package above this one."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking

_absent: _Any = _lacking("torch.distributed.optim")


_FILES = {"PostLocalSGDOptimizer": "post_local_sgd", "ZeroRedundancyOptimizer": "zero_redundancy"}
_MODULES = ("post_localSGD_optimizer", "zero_redundancy_optimizer")

__all__ = [
    "PostLocalSGDOptimizer",
    "ZeroRedundancyOptimizer",
    "post_localSGD_optimizer",
    "zero_redundancy_optimizer",
]


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _import_module(f"flambeau.distributed.optim.{name}")
    if name not in _FILES:
        return _absent(name)
    return getattr(_import_module(f"flambeau.optim.{_FILES[name]}"), name)
