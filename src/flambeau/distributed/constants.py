"""torch.distributed.constants: how long operations may take where nobody says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flambeau.core.names import lacking

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]

__getattr__: Any = lacking("torch.distributed.constants")

default_pg_timeout = timedelta(minutes=30)
default_pg_nccl_timeout = timedelta(minutes=10)
