"""torch.distributed.distributed_c10d: the module in which PyTorch defines the functions of `torch.distributed`."""

from __future__ import annotations

from typing import Any, NewType

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.backend_names import Backend, BackendConfig
from flambeau.distributed.backends.backend_registry import (
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from flambeau.distributed.collectives import group_calls
from flambeau.distributed.collectives.coalescing import _coalescing_manager, _CoalescingManager
from flambeau.distributed.collectives.collective_checks import supports_complex
from flambeau.distributed.collectives.collective_options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from flambeau.distributed.collectives.collectives import (
    _all_gather_base,
    _reduce_scatter_base,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from flambeau.distributed.collectives.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from flambeau.distributed.collectives.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from flambeau.distributed.collectives.reduce_op import RedOpType, ReduceOp, _make_nccl_premul_sum, reduce_op
from flambeau.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from flambeau.distributed.debug import DebugLevel
from flambeau.distributed.dist_errors import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    QueueEmptyError,
)
from flambeau.distributed.process_groups import (
    GroupMember,
    get_backend,
    get_backend_config,
    get_debug_level,
    get_default_backend_for_device,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_available,
    is_backend_available,
    is_initialized,
    is_torchelastic_launched,
    set_debug_level,
    set_debug_level_from_env,
)
from flambeau.distributed.process_groups import group_or_default as _group_or_default
from flambeau.distributed.rendezvous import register_rendezvous_handler, rendezvous
from flambeau.distributed.setup import (
    _abort_process_group,
    _set_pg_timeout,
    destroy_process_group,
    init_process_group,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    shrink_group,
    split_group,
)
from flambeau.distributed.stores.file_store import FileStore
from flambeau.distributed.stores.store import HashStore, PrefixStore, Store
from flambeau.distributed.stores.tcp_store import TCPStore
from flambeau.distributed.work import Work
from flambeau.distributed.world import ProcessGroup, world

GroupName = NewType("GroupName", str)

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "Backend",
    "BackendConfig",
    "BarrierOptions",
    "BroadcastOptions",
    "DebugLevel",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "GatherOptions",
    "GroupMember",
    "GroupName",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "RedOpType",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "TCPStore",
    "Work",
    "_CoalescingManager",
    "_abort_process_group",
    "_all_gather_base",
    "_coalescing_manager",
    "_get_process_group_name",
    "_make_nccl_premul_sum",
    "_rank_not_in_group",
    "_reduce_scatter_base",
    "_set_pg_timeout",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "default_pg_nccl_timeout",
    "default_pg_timeout",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "register_rendezvous_handler",
    "rendezvous",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "shrink_group",
    "split_group",
    "supports_complex",
]  # fmt: skip


def _get_default_group() -> ProcessGroup:
    """Return the group of all ranks. Raises ValueError if there is none."""
    return _group_or_default(None)


def _rank_not_in_group(group: Any) -> bool:
    """Return True if `group` is NON_GROUP_MEMBER, which `new_group` returns to ranks outside of the group."""
    return bool(group == GroupMember.NON_GROUP_MEMBER)


def _get_global_rank(group: Any, rank: int) -> int:
    """Call `get_global_rank`, under an older name."""
    return get_global_rank(group, rank)


def _get_process_group_name(pg: ProcessGroup) -> str:
    """Return a group's name; "None" if the group has been destroyed."""
    return pg.group_name if world().groups.get(pg.group_name) is pg else "None"


def _get_default_store() -> Store:
    """Return the store of `init_process_group`, with the prefix of the group of all ranks.

    Raises:
        ValueError: If `init_process_group` was not called.
    """
    world().require_default()
    found = world().store
    assert found is not None
    return found


group_calls.bind()
explain_absent_names(globals(), "torch.distributed.distributed_c10d")
