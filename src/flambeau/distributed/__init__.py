"""torch.distributed: groups of ranks, and collective operations on tensors between them. See docs/distributed.md."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.public_names import lacking as _lacking
from flambeau.core.public_names import publish as _publish
from flambeau.distributed import distributed_c10d
from flambeau.distributed.distributed_c10d import *  # noqa: F403

_absent = _lacking("torch.distributed")
_LATER = (  # modules that are imported on first use
    "_composable", "_functional_collectives", "_tensor", "algorithms", "checkpoint", "constants", "device_mesh",
    "elastic", "fsdp", "launch", "nn", "optim", "rpc", "run", "tensor",
)  # fmt: skip

_NAMES = {  # names of modules that are imported on first use
    "DeviceMesh": ("device_mesh", "DeviceMesh"),
    "init_device_mesh": ("device_mesh", "init_device_mesh"),
    "ProcessGroupNCCL": ("backends.nccl_options", "ProcessGroupNCCL"),
    "breakpoint": ("debugger", "breakpoint"),
    "GradBucket": ("ddp.buckets", "GradBucket"),
    "Reducer": ("ddp.reducer", "Reducer"),
    "BuiltinCommHookType": ("ddp.comm_hooks", "BuiltinCommHookType"),
    "_register_comm_hook": ("ddp.comm_hooks", "_register_comm_hook"),
    "_register_builtin_comm_hook": ("ddp.comm_hooks", "_register_builtin_comm_hook"),
    "_compute_bucket_assignment_by_size": ("ddp.buckets", "assign"),
    "_broadcast_coalesced": ("ddp.replicas", "_broadcast_coalesced"),
    "_verify_params_across_processes": ("ddp.replicas", "_verify_params_across_processes"),
    "_DEFAULT_FIRST_BUCKET_BYTES": ("ddp.reducer", "FIRST_BUCKET_BYTES"),
}


def __getattr__(name: str) -> _Any:
    if name in _NAMES:
        module, inner = _NAMES[name]
        return getattr(_import_module(f"flambeau.distributed.{module}"), inner)
    if name in _LATER:
        try:
            return _import_module(f"flambeau.distributed.{name}")
        except ModuleNotFoundError:
            return _absent(name)
    return _absent(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_NAMES})


_publish(globals())
