"""torch.distributed.fsdp.fully_sharded_data_parallel: the module in which PyTorch defines
`FullyShardedDataParallel`.
"""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.fsdp import FullyShardedDataParallel
from flambeau.distributed.fsdp.api import *  # noqa: F403
from flambeau.distributed.fsdp.api import __all__ as _options

__all__ = ["FullyShardedDataParallel", *_options]
explain_absent_names(globals(), "torch.distributed.fsdp.fully_sharded_data_parallel")
