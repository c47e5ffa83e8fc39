"""torch.distributed.nn: collectives with derivatives. Its functions are those of `torch.distributed.nn.functional`."""

from __future__ import annotations

from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking
from flambeau.distributed.nn import functional
from flambeau.distributed.nn.functional import *  # noqa: F403

__all__ = functional.__all__

_absent: _Any = _lacking("torch.distributed.nn")


def __getattr__(name: str) -> _Any:
    if name in functional.__dict__ and not name.startswith("__"):
        return functional.__dict__[name]
    return _absent(name)
