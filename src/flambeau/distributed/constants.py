"""torch.distributed.constants: the default timeouts of operations."""

from __future__ import annotations

from datetime import timedelta

from flambeau.core.public_names import explain_absent_names

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]

explain_absent_names(globals(), "torch.distributed.constants")

default_pg_timeout = timedelta(minutes=30)
default_pg_nccl_timeout = timedelta(minutes=10)
