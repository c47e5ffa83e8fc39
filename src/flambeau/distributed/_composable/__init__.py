"""torch.distributed._composable: functions that change how a module runs, and not its structure."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking
from flambeau.distributed._composable.checkpoint_activation import checkpoint
from flambeau.distributed._composable.contract import _get_registry, contract

__all__ = ["checkpoint", "contract"]
_absent = _lacking("torch.distributed._composable")


def __getattr__(name: str) -> _Any:
    return _import_module("flambeau.distributed._composable.fsdp") if name == "fsdp" else _absent(name)
