"""torch.distributed.optim: optimizers of several ranks. They lie in the room of optimizers, above this one."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.names import lacking as _lacking

_absent: _Any = _lacking("torch.distributed.optim")


def __getattr__(name: str) -> _Any:
    if name != "ZeroRedundancyOptimizer":
        return _absent(name)
    return _import_module("flambeau.optim.zero_redundancy").ZeroRedundancyOptimizer
