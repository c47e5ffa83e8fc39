"""Names, parameters and defaults of data-parallel training are PyTorch's."""

from __future__ import annotations

import inspect
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
from support import torch

ROOMS = {
    "nn.parallel.distributed": ["DistributedDataParallel"],
    "nn": ["SyncBatchNorm"],
    "distributed.optim": ["ZeroRedundancyOptimizer"],
    "distributed.algorithms.join": ["Join", "Joinable", "JoinHook"],
    "distributed.algorithms.ddp_comm_hooks": ["DDPCommHookType", "register_ddp_comm_hook"],
    "distributed.algorithms.ddp_comm_hooks.default_hooks": [
        "allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "fp16_compress_wrapper", "bf16_compress_wrapper",
    ],
    "distributed.algorithms.ddp_comm_hooks.powerSGD_hook": ["PowerSGDState", "powerSGD_hook", "batched_powerSGD_hook"],
    "distributed.algorithms.ddp_comm_hooks.debugging_hooks": ["noop_hook"],
    "distributed.algorithms.ddp_comm_hooks.post_localSGD_hook": ["PostLocalSGDState", "post_localSGD_hook"],
}  # fmt: skip
NAMES = [(room, name) for room, names in ROOMS.items() for name in names]


def parameters(of: Any) -> list[tuple[str, Any, str]]:
    return [(p.name, p.kind, repr(p.default)) for p in inspect.signature(of).parameters.values()]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own import
@pytest.mark.parametrize(("room", "name"), NAMES)
def test_signatures_are_pytorchs(room: str, name: str) -> None:
    theirs, ours = (getattr(import_module(f"{root}.{room}"), name) for root in ("torch", "flambeau"))
    if name == "DDPCommHookType":
        assert {n for n in theirs.__members__ if "QUANTIZE" not in n and "POST" not in n} == set(
            ours.__members__
        )
        return
    assert parameters(ours) == parameters(theirs)
    if inspect.isclass(theirs):
        for method, value in vars(theirs).items():
            if callable(value) and not method.startswith("_") and name != "DistributedDataParallel":
                assert parameters(getattr(ours, method)) == parameters(value), method


PUBLIC = ("forward", "no_sync", "join", "join_hook", "register_comm_hook", "scatter", "to_kwargs", "gather",
          "will_sync_module_buffers", "_set_static_graph", "_register_comm_hook", "_check_reducer_finalized",
          "_set_params_and_buffers_to_ignore_for_model", "_get_data_parallel_params", "_get_ddp_logging_data",
          "_register_buffer_comm_hook", "_register_builtin_comm_hook", "_register_fused_optim", "_update_process_group",
          "_set_ddp_sink_clone", "_default_broadcast_coalesced", "_distributed_broadcast_coalesced")  # fmt: skip


@pytest.mark.parametrize(
    "method", [m for m in PUBLIC if hasattr(torch.nn.parallel.DistributedDataParallel, m)]
)
def test_methods_of_ddp_take_what_pytorchs_take(method: str) -> None:
    theirs, ours = (
        getattr(import_module(f"{root}.nn.parallel").DistributedDataParallel, method)
        for root in ("torch", "flambeau")
    )
    assert parameters(ours) == parameters(theirs)


def test_the_reducer_and_its_buckets_have_pytorchs_names() -> None:
    theirs, ours = (import_module(f"{root}.distributed") for root in ("torch", "flambeau"))
    assert {n for n in dir(theirs.GradBucket) if not n.startswith("_")} <= set(dir(ours.GradBucket))
    assert ours.BuiltinCommHookType.__members__.keys() == theirs.BuiltinCommHookType.__members__.keys()
    assert ours._DEFAULT_FIRST_BUCKET_BYTES == theirs._DEFAULT_FIRST_BUCKET_BYTES
    lacking = {
        "_ddp_graph_static", "_pybind11_conduit_v1_", "_set_ddp_runtime_logging_sample_rate", "_set_optimizer_in_backward",
        "_set_mixed_precision_param_dtype", "_set_sparse_metadata", "get_backward_stats", "set_logger",
    }  # fmt: skip
    named = {n for n in dir(theirs.Reducer) if not n.startswith("__")} - lacking
    assert named <= set(dir(ours.Reducer)), named - set(dir(ours.Reducer))


@pytest.mark.parametrize(
    "name", ["ReduceOp.RedOpType", "ProcessGroup.BackendType", "DebugLevel", "BuiltinCommHookType"]
)
def test_enumerations_are_written_as_pytorchs(name: str) -> None:
    theirs, ours = (attrgetter(name)(import_module(f"{root}.distributed")) for root in ("torch", "flambeau"))
    for member, their in theirs.__members__.items():
        mine = ours.__members__[member]
        assert (str(mine), repr(mine), f"{mine}", int(mine)) == (
            str(their),
            repr(their),
            f"{their}",
            int(their),
        )
