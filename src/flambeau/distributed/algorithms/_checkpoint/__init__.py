"""torch.distributed.algorithms._checkpoint: modules whose activations are computed again in the backward pass."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking

_absent = _lacking("torch.distributed.algorithms._checkpoint")


def __getattr__(name: str) -> _Any:
    if name == "checkpoint_wrapper":
        return _import_module("flambeau.distributed.algorithms._checkpoint.checkpoint_wrapper")
    return _absent(name)
