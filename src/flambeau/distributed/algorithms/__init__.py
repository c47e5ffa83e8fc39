"""torch.distributed.algorithms: training with uneven inputs, and the compression of gradients."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking

_absent: _Any = _lacking("torch.distributed.algorithms")


def __getattr__(name: str) -> _Any:
    if name in ("_checkpoint", "ddp_comm_hooks", "join", "model_averaging"):
        return _import_module(f"flambeau.distributed.algorithms.{name}")
    if name in ("Join", "Joinable", "JoinHook"):
        return getattr(_import_module("flambeau.distributed.algorithms.join"), name)
    return _absent(name)
