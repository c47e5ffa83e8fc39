"""Queries of process groups: existence, members, backends, and the group that an argument names."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.core.device import device
from flambeau.core.errors import argument_type
from flambeau.distributed.backend_names import Backend
from flambeau.distributed.backends import backend_registry
from flambeau.distributed.debug import DebugLevel, level_of
from flambeau.distributed.world import NON_GROUP_MEMBER, ProcessGroup, world


class _GroupNamespace(type):
    """The namespace `group`: `group.WORLD` is the calling rank's group of all ranks, None before
    `init_process_group`.
    """

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802 - PyTorch's name
        return world().default

    @WORLD.setter
    def WORLD(cls, group: ProcessGroup | None) -> None:  # noqa: N802
        world().default = group


class group(metaclass=_GroupNamespace):
    """A namespace: `group.WORLD` is the group of all ranks."""


class GroupMember(metaclass=_GroupNamespace):
    """The namespace of `WORLD` and of `NON_GROUP_MEMBER`, which `new_group` returns to ranks outside of the group."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


def is_available() -> bool:
    """Return True: this package is here."""
    return True


def is_initialized() -> bool:
    """Return True if there is a group of all ranks."""
    return world().default is not None


def is_torchelastic_launched() -> bool:
    """Return True if `flambeau launch` or torchrun started this process."""
    return world().environment.get("TORCHELASTIC_RUN_ID") is not None


def is_backend_available(backend: str) -> bool:
    """Return True if a backend, or each of "cpu:gloo,cuda:nccl", is available.

    Raises:
        TypeError: If it is not a str.
    """
    if not isinstance(backend, str):
        raise TypeError(argument_type("is_backend_available", "backend", 1, "str", backend))
    words = [pair.rpartition(":")[2] for pair in backend.split(",")]
    backends = {
        "nccl": backend_registry.is_nccl_available, "gloo": backend_registry.is_gloo_available, "mpi":
        backend_registry.is_mpi_available,
    }  # fmt: skip
    return all(word in backends and backends[word]() for word in words)


def get_rank(group: Any = None) -> int:
    """Return this rank's number in a group (default: its global number); -1 if it is not a member."""
    if group == NON_GROUP_MEMBER:
        return -1
    default = world().require_default()
    if group is None or group is default:
        return default.rank()
    return get_group_rank(group, default.rank())


def get_world_size(group: Any = None) -> int:
    """Return the number of ranks of a group (default: of all ranks); -1 if this rank is not a member."""
    if group == NON_GROUP_MEMBER:
        return -1
    return group_or_default(group).size()


def get_backend(group: Any = None) -> Backend:
    """Return a group's backend, by its word."""
    found = group_or_default(group)
    if not is_registered(found):
        raise ValueError("Invalid process group specified")
    return Backend(found.name())


def get_backend_config(group: Any = None) -> str:
    """Return which backend serves which devices: "cpu:gloo,cuda:nccl"."""
    return group_or_default(group).config


def _type_of(where: Any) -> str:
    return (where if isinstance(where, device) else device(where)).type


def get_default_backend_for_device(device: Any) -> str:
    """Return the backend for a kind of device.

    Raises:
        ValueError: If there is none.
    """
    kind = (
        device.split(":")[0] if isinstance(device, str) else _type_of(device)
    )  # kinds of backends that only PyTorch has
    found = Backend.default_device_backend_map.get(kind)
    if found is None:
        raise ValueError(f"Default backend not registered for device : {device}")
    return found


def get_debug_level() -> DebugLevel:
    """Return the level of checks, from TORCH_DISTRIBUTED_DEBUG or as it was set."""
    return world().debug


def set_debug_level(level: DebugLevel) -> None:
    """Set the debug level for groups that are created later. With DETAIL ranks compare collectives before they
    begin.
    """
    if not isinstance(level, DebugLevel):
        raise TypeError(f"set_debug_level(): level must be a DebugLevel, not {type(level).__name__}")
    world().debug = level


def set_debug_level_from_env() -> None:
    """Set the debug level that TORCH_DISTRIBUTED_DEBUG selects.

    Raises:
        ValueError: If the value is neither OFF, INFO nor DETAIL.
    """
    world().debug = level_of(world().environment)


def get_pg_count() -> int:
    """Return the number of groups that this rank has created, including those of which it is not a member."""
    return world().count


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return LOCAL_RANK, or `fallback_rank` if it is not set.

    Raises:
        RuntimeError: If both are missing.
    """
    found = world().environment.get("LOCAL_RANK")
    if found is not None:
        return int(found)
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError(
        "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow `get_node_local_rank` to work, "
        "assuming you are not running in a multi-device context and want the code to run locally instead."
    )


def get_group_rank(group: Any, global_rank: int) -> int:
    """Return a group's number for a global rank.

    Raises:
        ValueError: If it is not in the group.
    """
    if group is world().default:
        return global_rank
    ranks = _ranks_of(group)
    if global_rank not in ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return ranks.index(global_rank)


def get_global_rank(group: Any, group_rank: int) -> int:
    """Return the global rank of a group's member.

    Raises:
        ValueError: If there is no such member.
    """
    if group is world().default:
        return group_rank
    ranks = _ranks_of(group)
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return ranks[group_rank]


def get_process_group_ranks(group: Any) -> list[int]:
    """Return the global ranks of a group, in the order of their ranks in it; of the group of all ranks by default."""
    return list(group_or_default(group).ranks)


def group_or_default(group: Any) -> ProcessGroup:
    """Return the group that an argument means.

    Raises:
        ValueError: If it is not a group.
    """
    if group is None:
        return world().require_default()
    if not isinstance(group, ProcessGroup) and group != NON_GROUP_MEMBER:
        raise ValueError(
            f"Process group {group} is not initialized in the world group map. Please initialize the group first."
        )
    return group  # type: ignore[no-any-return]


def named_group(name: str) -> ProcessGroup:
    """Return the group of this rank that has a name.

    Raises:
        RuntimeError: If the group has been destroyed.
    """
    found = world().groups.get(name)
    if found is None:
        raise RuntimeError(f"Could not resolve the process group registered under the name {name}")
    return found


def group_rank_of(group: ProcessGroup, rank: int | None, group_rank: int | None) -> int:
    """Return the group rank that one of two arguments specifies: a global rank or a rank of the group.

    Raises:
        ValueError: For both, or neither.
    """
    if group_rank is not None:
        if rank is not None:
            raise ValueError("Can't specify both group_rank and global_rank")
        return group_rank
    if rank is None:
        raise ValueError("Must specify global_rank or group_rank")
    return get_group_rank(group, rank)


def is_outside(group: Any, what: str) -> bool:
    """Return True if this rank is not in a group; warns of it."""
    if group != NON_GROUP_MEMBER:
        return False
    default = world().default
    warnings.warn(
        f"Running {what} on global rank {-1 if default is None else default.rank()} which does not belong to the "
        "given group.",
        stacklevel=3,
    )
    return True


def _ranks_of(group: Any) -> tuple[int, ...]:
    """Return the global ranks of a group's members. Raises ValueError if there is no such group."""
    if not is_registered(group):
        raise ValueError(
            f"Group {group} is not registered, please create group with torch.distributed.new_group API"
        )
    ranks: tuple[int, ...] = group.ranks
    return ranks


def is_registered(group: Any) -> bool:
    """Return True for a group of this rank that is not destroyed."""
    return isinstance(group, ProcessGroup) and world().groups.get(group.group_name) is group
