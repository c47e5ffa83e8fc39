"""Creation and destruction of groups: `init_process_group`, `new_group` and related functions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

from flambeau.core.device import device
from flambeau.core.errors import NotSupportedError
from flambeau.distributed.backend_names import Backend, devices_of
from flambeau.distributed.backends import backend_registry, watchdog
from flambeau.distributed.backends.nccl_options import priority_of
from flambeau.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from flambeau.distributed.excepthook import report_by_rank
from flambeau.distributed.launching.rank_watch import watch_ranks
from flambeau.distributed.process_groups import (
    get_process_group_ranks,
    get_world_size,
    group_or_default,
    is_registered,
)
from flambeau.distributed.rendezvous import rendezvous
from flambeau.distributed.stores.store import JobStore, turn
from flambeau.distributed.world import NON_GROUP_MEMBER, ProcessGroup, World, world
from flambeau.runtime import system

# -- all ranks ------------------------------------------------------------------------------------------------


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: Sequence[int] | None = None,
) -> None:
    """Create the group of all ranks. They find each other by `store` or by a URL (`init_method`, default "env://").

    Args:
        backend: "nccl" (CUDA tensors, also of virtual GPUs), "gloo" or "mpi" (CPU tensors), or "cpu:gloo,cuda:nccl".
            None selects the backend for the device of `device_id`, or gloo for CPU tensors and nccl for CUDA tensors.
        timeout: Time limit of operations; default: 10 minutes with nccl, 30 minutes otherwise.
        device_id: The CUDA device of this rank; nccl's communicator is created immediately.
        pg_options: A ProcessGroupNCCL.Options, for nccl.
        group_name: No effect, as in PyTorch.

    Raises:
        ValueError: If a group exists already, or an argument is missing or has no use.
        RuntimeError: If the backend is not available.
    """
    mine = world()
    if mine.default is not None:
        raise ValueError("trying to initialize the default process group twice!")
    # PyTorch uses assert for these, so they raise AssertionError, under `python -O` too.
    if store is not None and init_method is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    if store is not None and world_size <= 0:
        raise AssertionError("world_size must be positive if using store")
    if store is not None and rank < 0:
        raise AssertionError("rank must be non-negative if using store")
    bound = _bound_device(device_id)
    if backend is None and bound is not None:
        backend = Backend.default_device_backend_map[bound.type]
    word = Backend(Backend.UNDEFINED if backend is None else backend)
    timeout = _timeout(timeout, word)
    devices = devices_of(word)
    _check(word, devices)
    priority = priority_of(pg_options, devices, timeout)
    mine.world_groups += 1
    store, rank, world_size = _rendezvous_store(mine, word, init_method, store, rank, world_size, timeout)
    # A part of the store without the keys of earlier groups, which a launcher's store still holds.
    with turn(store, f"default_pg/turn/{rank}") as number:
        name = f"default_pg/{number}"
        mine.store = JobStore(name, store)
        _agree_on_size(mine.store, rank, world_size)
        if mine.session is None:
            watch_ranks(mine.store, name, rank, world_size)
        made = mine.add(
            tuple(range(world_size)), rank, mine.next_name(), word, devices, timeout, "default_pg", priority
        )
        mine.default = made
        with _left_if_it_fails(mine, made):
            _prepare(mine, devices, made)
    with _left_if_it_fails(mine, made):
        _bind(made, bound)
    if mine.session is None:
        report_by_rank(rank, watchdog.process.give_up)


def _rendezvous_store(
    mine: World, word: str, init_method: str | None, store: Any, rank: int, size: int, timeout: timedelta
) -> tuple[Any, int, int]:
    """Return (store, rank, number of ranks)."""
    if store is not None:
        return store, rank, size
    if mine.session is not None and init_method in (None, "env://"):
        return mine.session.store, int(mine.environment["RANK"]), int(mine.environment["WORLD_SIZE"])
    if (
        word == Backend.MPI
        and (mpi := import_module("flambeau.distributed.backends.mpi_world")).started_together()
    ):
        if size != -1 or rank != -1:
            warnings.warn(
                f"For MPI backend, world_size ({size}) and rank ({rank}) are ignored since they are assigned by the "
                "MPI runtime.",
                stacklevel=3,
            )
        return mpi.meet(timeout)
    found, rank, size = next(rendezvous(init_method or "env://", rank, size, timeout=timeout))
    found.set_timeout(timeout)
    return found, rank, size


def _agree_on_size(store: JobStore, rank: int, size: int) -> None:
    """Raise ValueError if the ranks were started with different world sizes, or `rank` or `size` is out of range. Ranks
    that wait for this one fail then, too.
    """
    try:
        _check_size(store, rank, size)
    except ValueError as error:
        store.refuse(str(error))
        raise


def _check_size(store: JobStore, rank: int, size: int) -> None:
    if not 0 <= rank < size < 1 << 31:
        raise ValueError(
            f"rank {rank} is out of range: RANK or rank must be from 0 to world_size - 1, and WORLD_SIZE or "
            f"world_size, here {size}, from 1 to {(1 << 31) - 1}"
        )
    if store.add("size/asked", 1) == 1:
        store.set("size/first", f"{size} {rank}")
        return
    first, by = map(int, store.get("size/first").split())
    if first != size:
        raise ValueError(
            f"the ranks disagree on their number: WORLD_SIZE or world_size is {size} on rank {rank}, and {first} on "
            f"rank {by}. It must be the same on all of them"
        )


@contextmanager
def _left_if_it_fails(mine: World, made: ProcessGroup) -> Iterator[None]:
    try:
        yield
    except BaseException:
        mine.leave(made, ProcessGroup.abort)
        raise


def _bound_device(where: Any) -> device | None:
    """Return the device that a rank has bound to its process group."""
    if where is None:
        return None
    found = (
        where
        if isinstance(where, device)
        else device("cuda", where)
        if isinstance(where, int)
        else device(where)
    )
    if found.type == "cuda":
        if found.index is None:
            raise ValueError("Please use a device_id with index.")
        if found.index >= system.device_count():
            raise ValueError(
                f"device_id {found} is out of range. Please use a device index less than the number of accelerators "
                f"available: {system.device_count()}."
            )
    return found


def _bind(made: ProcessGroup, bound: device | None) -> None:
    """Bind a group to its device and create its communicator immediately, for CPU tensors too."""
    if backend_registry.meets_early(made._devices, made._place, made._hub):
        made.backend_of("cpu")
    made.bound_device_id = bound
    if bound is not None and bound.type == "cuda" and "cuda" in made.device_types:
        backend: Any = made.backend_of("cuda")
        backend.connect(bound.index)


def _check(word: str, devices: Mapping[str, str]) -> None:
    """Raise if a backend that the program named is not available."""
    for name in devices.values():
        if word != Backend.UNDEFINED:
            backend_registry.check(name)


def _prepare(mine: World, devices: Mapping[str, str], everybody: ProcessGroup) -> None:
    """Run the steps of these devices' backends that need all ranks, including non-members. All ranks call this."""
    backend_registry.prepare(devices, everybody._place, everybody._hub)
    mine.served = backend_registry.prepare_gpus(devices, everybody._place, everybody._hub, mine.served)


def _timeout(timeout: timedelta | None, word: str) -> timedelta:
    if timeout is None:
        return default_pg_nccl_timeout if word == Backend.NCCL else default_pg_timeout
    if not isinstance(timeout, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout}")
    return timeout


def destroy_process_group(group: Any = None) -> None:
    """Destroy a group after its pending operations. None destroys all groups; `init_process_group` may follow."""
    _leave(group, ProcessGroup.shutdown)


def _abort_process_group(group: Any = None) -> None:
    """Abort a group immediately: pending operations fail."""
    _leave(group, ProcessGroup.abort)


def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
    """Set the timeout of later operations of a group (default: all ranks).

    Raises ValueError if this rank is not in it, or AssertionError if it is not a group, or TypeError if the value
    is not a timedelta.
    """
    if group == NON_GROUP_MEMBER:
        raise ValueError("Invalid process group specified")
    found = world().require_default() if group is None else group
    if not isinstance(found, ProcessGroup):
        raise AssertionError(f"Expected ProcessGroup, got {type(found)}")
    found.set_timeout(timeout)


def _leave(group: Any, how: Any) -> None:
    if group == NON_GROUP_MEMBER:
        return
    mine = world()
    found = mine.default if group is None else group
    if found is None:
        raise AssertionError("Process group cannot be None")
    if not is_registered(found):
        raise ValueError("Invalid process group specified")
    mine.leave(found, how)


# -- some ranks -----------------------------------------------------------------------------------------------


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Any:
    """Return a group of some ranks (default: all). All ranks, members or not, must create groups in the same order.

    With `use_local_synchronization` only its members call. Returns GroupMember.NON_GROUP_MEMBER to those outside,
    or None where they need not have called.

    Raises:
        ValueError: For ranks that there are not, or twice.
    """
    mine = world()
    default = mine.require_default()
    word = Backend(backend) if backend else Backend(default.name())
    timeout = _timeout(timeout, word)
    if use_local_synchronization:
        if word == Backend.MPI:
            raise ValueError("MPI backend doesn't support use_local_synchronization=True")
        if ranks is not None and default.rank() not in ranks:
            return None
    members = _members(ranks, default.size(), sort_ranks)
    devices = devices_of(word)
    priority = priority_of(pg_options, devices, timeout)
    name = mine.next_hashed_name(members) if use_local_synchronization else mine.next_name()
    _check(word, devices)
    if not use_local_synchronization:
        _prepare(mine, devices, default)
    if default.rank() not in members:
        return NON_GROUP_MEMBER
    rank = members.index(default.rank())
    made = mine.add(members, rank, name, word, devices, timeout, group_desc or "undefined", priority)
    _bind(made, default.bound_device_id if device_id is None else _bound_device(device_id))
    return made


def _members(ranks: Sequence[int] | None, size: int, sort: bool) -> tuple[int, ...]:
    """Return the ranks of a new group."""
    if ranks is None:
        return tuple(range(size))
    found = sorted(ranks) if sort else list(ranks)
    if len({*found}) != len(found):
        raise ValueError(f"ranks list must not contain duplicate entries, got {found}")
    if len(found) > size:
        raise ValueError(
            "the new group's world size should be less or equal to the world size set by init_process_group"
        )
    for rank in found:
        if rank < 0 or rank >= size:
            raise ValueError(
                f"Rank {rank} is out of range. Valid ranks are 0 to {size - 1} (world_size={size})"
            )
    return tuple(found)


def new_subgroups(
    group_size: int | None = None,
    group: Any = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Create groups of `group_size` ranks (default: the number of CUDA devices). Returns this rank's group, and all."""
    if group_size is None:
        if not system.is_available():
            raise ValueError(
                "Default group size only takes effect when CUDA is available."
                "If your subgroup using a backend that does not depend on CUDA,"
                "please pass in 'group_size' correctly."
            )
        group_size = system.device_count()
    if group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    size = get_world_size(group)
    if size < group_size:
        raise ValueError(f"The arg 'group_size' ({group_size}) must not exceed the world size ({size})")
    if size % group_size:
        raise ValueError(f"The world size ({size}) must be divisible by 'group_size={group_size}'")
    ranks = get_process_group_ranks(group)
    parts = [ranks[i : i + group_size] for i in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Create a group for each list of ranks. Return the group of this rank, None without one, and all groups. No rank
    may be in two lists.
    """
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    seen: dict[int, Sequence[int]] = {}
    for ranks in ranks_per_subgroup_list:
        for rank in ranks:
            if rank in seen:
                raise ValueError(f"Rank {rank} has appeared in both subgroup {seen[rank]} and {ranks}")
            seen[rank] = ranks
    groups = [
        new_group(ranks, timeout, backend, pg_options, group_desc=group_desc)
        for ranks in ranks_per_subgroup_list
    ]
    return next((g for g in groups if g != NON_GROUP_MEMBER), None), groups


def split_group(
    parent_pg: Any = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    """Split a group. All its ranks call this. `split_ranks` are lists of ranks of the parent group. Ranks in no list
    get None.

    Raises:
        ValueError: If the values are not lists; a rank twice.
    """
    parent = group_or_default(parent_pg)
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    chosen = [rank for ranks in split_ranks for rank in ranks]
    if len({*chosen}) != len(chosen):
        raise ValueError("the split group cannot have duplicate ranks")
    mine, made = world(), None
    word = Backend(backend) if backend else Backend(parent.name())
    limit = _timeout(timeout, word)
    priority = (
        priority_of(pg_options, devices_of(word), limit) if pg_options is not None else parent._place.priority
    )
    for number, ranks in enumerate(sorted(map(sorted, split_ranks))):
        if any(not 0 <= rank < parent.size() for rank in ranks):
            raise ValueError(f"split ranks {ranks} are not all of a group of {parent.size()} ranks")
        members = tuple([parent.ranks[rank] for rank in ranks])
        if parent.rank() in ranks:
            name = f"{parent.group_name}:split:{parent.splits}:{number}"
            made = mine.add(
                members, ranks.index(parent.rank()), name, word, devices_of(word), limit,
                group_desc or f"{parent.group_desc}:split:{number}", priority,
            )  # fmt: skip
    parent.splits += 1
    if made is not None:
        _bind(made, parent.bound_device_id)
    return made


def shrink_group(*args: Any, **kwargs: Any) -> Any:
    """Raise NotSupportedError: Flambeau cannot shrink groups."""
    raise NotSupportedError(
        "Flambeau lacks torch.distributed.shrink_group: make a new_group of the ranks that are left"
    )
