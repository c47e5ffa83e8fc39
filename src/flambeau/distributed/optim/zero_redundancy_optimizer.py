"""torch.distributed.optim.zero_redundancy_optimizer: see `flambeau/optim/zero_redundancy.py`, in a room above."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any


def __getattr__(name: str) -> _Any:
    return getattr(_import_module("flambeau.optim.zero_redundancy"), name)
