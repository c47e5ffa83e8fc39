"""torch.distributed.checkpoint: names that can be imported; using one raises NotSupportedError.

Flambeau does not write one checkpoint from several ranks.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking
from flambeau.distributed.checkpoint.checkpoint_names import *  # noqa: F403

_absent = _lacking("torch.distributed.checkpoint")
_MODULES = (
    "default_planner", "filesystem", "format_utils", "hf_storage", "metadata", "optimizer", "planner", "state_dict",
    "state_dict_loader", "state_dict_saver", "stateful", "storage",
)  # fmt: skip


def __getattr__(name: str) -> _Any:
    return _import_module(f"flambeau.distributed.checkpoint.{name}") if name in _MODULES else _absent(name)
