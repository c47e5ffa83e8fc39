"""torch.distributed._composable.fsdp: the old place of names of `torch.distributed.fsdp`."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = [
    "CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard",
    "register_fsdp_forward_method",
]  # fmt: skip
explain_absent_names(globals(), "torch.distributed._composable.fsdp")
