"""torch.distributed._composable: the old place of `torch.distributed.fsdp.fully_shard`."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking

_absent = _lacking("torch.distributed._composable")


def __getattr__(name: str) -> _Any:
    return _import_module("flambeau.distributed._composable.fsdp") if name == "fsdp" else _absent(name)
