"""torch.distributed.fsdp: options and wrapping policies work; sharding a module raises NotSupportedError.

Modules in reading order: api (options), wrap (policies), fully_sharded_data_parallel, sharded_grad_scaler.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.absent import absent_class as _absent_class
from flambeau.core.absent import absent_function as _absent_function
from flambeau.core.dtype import dtype as _dtype
from flambeau.core.public_names import lacking as _lacking
from flambeau.distributed.fsdp.api import *  # noqa: F403
from flambeau.nn.modules.module import Module as _Module

_HERE = "torch.distributed.fsdp"
_ADVICE = "Use DistributedDataParallel, with ZeroRedundancyOptimizer to divide the optimizer's state."
_absent = _lacking(_HERE)

FullyShardedDataParallel = _absent_class(_HERE, "FullyShardedDataParallel", _ADVICE, _Module)
FSDPModule = _absent_class(_HERE, "FSDPModule", _ADVICE)
UnshardHandle = _absent_class(_HERE, "UnshardHandle", _ADVICE)
fully_shard = _absent_function(_HERE, "fully_shard", _ADVICE)
register_fsdp_forward_method = _absent_function(_HERE, "register_fsdp_forward_method", _ADVICE)
share_comm_ctx = _absent_function(_HERE, "share_comm_ctx", _ADVICE)


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of parameters, of gradient sums and of outputs for `fully_shard`."""

    param_dtype: _dtype | None = None
    reduce_dtype: _dtype | None = None
    output_dtype: _dtype | None = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """The default policy: no state is offloaded to host memory. Base class of `CPUOffloadPolicy`."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """The policy that keeps parameters, gradients and optimizer state in host memory."""

    pin_memory: bool = True


@dataclass(frozen=True)
class DataParallelMeshDims:
    """The dimensions of a mesh that divide and that replicate."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None


def __getattr__(name: str) -> _Any:
    if name in ("api", "fully_sharded_data_parallel", "sharded_grad_scaler", "wrap"):
        return _import_module(f"flambeau.distributed.fsdp.{name}")
    return _absent(name)
