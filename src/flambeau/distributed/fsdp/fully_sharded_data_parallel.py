"""torch.distributed.fsdp.fully_sharded_data_parallel: the module in which PyTorch writes `FullyShardedDataParallel`."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.fsdp import FullyShardedDataParallel
from flambeau.distributed.fsdp.api import *  # noqa: F403
from flambeau.distributed.fsdp.api import __all__ as _options

__all__ = ["FullyShardedDataParallel", *_options]
__getattr__ = lacking("torch.distributed.fsdp.fully_sharded_data_parallel")
