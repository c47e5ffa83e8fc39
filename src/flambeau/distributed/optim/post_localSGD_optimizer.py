"""torch.distributed.optim.post_localSGD_optimizer: see `flambeau/optim/post_local_sgd.py`, in a room above."""

# ruff: noqa: N999  the module's name is PyTorch's

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any


def __getattr__(name: str) -> _Any:
    return getattr(_import_module("flambeau.optim.post_local_sgd"), name)
