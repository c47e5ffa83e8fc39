"""Collectives of Python objects, which are pickled. Exchange objects only with ranks that you trust.

The bytes are CPU tensors if the group serves the CPU, else tensors on the current CUDA device. The host waits for each.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from flambeau.core.device import device
from flambeau.core.dtype import int64, uint8
from flambeau.distributed.collectives import collective_checks
from flambeau.distributed.collectives.collectives import all_gather, broadcast, gather, scatter
from flambeau.distributed.collectives.messages import recv, send
from flambeau.distributed.process_groups import (
    group_or_default,
    group_rank_of,
    is_outside,
)
from flambeau.distributed.world import ProcessGroup
from flambeau.runtime import current
from flambeau.tensor.exchange.data import tensor as new_tensor
from flambeau.tensor.exchange.interop import from_numpy
from flambeau.tensor.functions import creation


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Gather every rank's object into a list by rank.

    Raises:
        ValueError: If the list is shorter than the group.
    """
    if is_outside(group, "all_gather_object"):
        return
    found = group_or_default(group)
    if len(object_list) < found.size():
        raise ValueError(
            f"all_gather_object: a list of {len(object_list)} for the objects of {found.size()} ranks"
        )
    where = _device(found)
    data, size = _pickle_to_tensor(obj, where)
    sizes = _all_sizes(size, found, where)
    widest = max(sizes)
    rows = [creation.empty(widest, dtype=uint8, device=where) for _ in sizes]
    all_gather(rows, _pad_bytes(data, widest), found)
    for rank, row in enumerate(rows):
        object_list[rank] = _unpickle_tensor(row, sizes[rank])


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """Gather every rank's object into the list of rank `dst` (default: rank 0)."""
    if is_outside(group, "gather_object"):
        return
    found = group_or_default(group)
    root = group_rank_of(found, 0 if dst is None and group_dst is None else dst, group_dst)
    mine = found.rank() == root
    if mine and not object_gather_list:
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if not mine and object_gather_list:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    where = _device(found)
    data, size = _pickle_to_tensor(obj, where)
    sizes = _all_sizes(size, found, where)
    widest = max(sizes)
    rows = [creation.empty(widest, dtype=uint8, device=where) for _ in sizes] if mine else None
    gather(_pad_bytes(data, widest), rows, group=found, group_dst=root)
    for rank, row in enumerate(rows or ()):
        assert object_gather_list is not None
        object_gather_list[rank] = _unpickle_tensor(row, sizes[rank])


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Copy the objects in the list of one rank into the lists of all ranks, which must have its length.

    Args:
        src: The global number of that rank (default: 0).
        device: The device of the tensors that carry the pickled objects.
        group_src: The number of that rank in the group, in place of `src`.
    """
    if is_outside(group, "broadcast_object_list"):
        return
    found = group_or_default(group)
    root = group_rank_of(found, 0 if src is None and group_src is None else src, group_src)
    where = _device(found) if device is None else device
    packed = [_pickle_to_tensor(obj, where) for obj in object_list] if found.rank() == root else []
    sizes = new_tensor([size for _, size in packed] or [0] * len(object_list), dtype=int64).to(where)
    broadcast(sizes, group=found, group_src=root)
    counts = sizes.tolist()
    whole = _concatenate([data for data, _ in packed], sum(counts), where)
    broadcast(whole, group=found, group_src=root)
    if found.rank() != root:
        _fill(object_list, whole, counts)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """Send the n-th object of rank `src`'s list (default: rank 0's) to rank n, as the first of its output list."""
    if is_outside(group, "scatter_object_list"):
        return
    if not isinstance(scatter_object_output_list, list) or len(scatter_object_output_list) < 1:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    found = group_or_default(group)
    root = group_rank_of(found, 0 if src is None and group_src is None else src, group_src)
    where = _device(found)
    packed = []
    if found.rank() == root:
        if not scatter_object_input_list:
            raise ValueError("source rank must provide non-None scatter_object_input_list")
        packed = [_pickle_to_tensor(obj, where) for obj in scatter_object_input_list]
    widest = new_tensor([max([size for _, size in packed], default=0)], dtype=int64).to(where)
    broadcast(widest, group=found, group_src=root)
    rows = [_pad_bytes(data, int(widest.item())) for data, _ in packed]
    mine, size = (
        creation.empty(int(widest.item()), dtype=uint8, device=where),
        creation.empty(1, dtype=int64, device=where),
    )
    scatter(mine, rows or None, group=found, group_src=root)
    sizes = [new_tensor([count], dtype=int64).to(where) for _, count in packed]
    scatter(size, sizes or None, group=found, group_src=root)
    scatter_object_output_list[0] = _unpickle_tensor(mine, int(size.item()))


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send a list of objects to a rank that calls `recv_object_list`. `use_batch` has no effect."""
    if is_outside(group, "send_object_list"):
        return
    found = group_or_default(group)
    to = group_rank_of(found, dst, group_dst)
    collective_checks.other(found, to, "destination")
    where = _device(found) if device is None else device
    packed = [_pickle_to_tensor(obj, where) for obj in object_list]
    send(new_tensor([size for _, size in packed], dtype=int64).to(where), group=found, group_dst=to)
    whole = _concatenate([data for data, _ in packed], sum([size for _, size in packed]), where)
    send(whole, group=found, group_dst=to)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive objects into a list of the expected length.

    Returns:
        The global rank of the sender; -1 outside of the group.
    """
    if is_outside(group, "recv_object_list"):
        return -1
    found = group_or_default(group)
    where = _device(found) if device is None else device
    sizes = creation.empty(len(object_list), dtype=int64, device=where)
    origin = recv(sizes, src, found, group_src=group_src)
    counts = sizes.tolist()
    whole = creation.empty(sum(counts), dtype=uint8, device=where)
    if recv(whole, origin, found) != origin:
        raise RuntimeError("Mismatch in return ranks for object sizes and objects.")
    _fill(object_list, whole, counts)
    return origin


# -- what they share ------------------------------------------------------------------------------------------


def _device(group: ProcessGroup) -> device:
    """Return the device on which a group exchanges pickled objects."""
    return device("cpu") if "cpu" in group.device_types else device("cuda", current.local.device)


def _pickle_to_tensor(obj: Any, where: Any) -> tuple[Any, int]:
    """Return an object's bytes as a tensor, and how many."""
    buffer = io.BytesIO()
    pickle.Pickler(buffer).dump(obj)
    data = np.frombuffer(buffer.getvalue(), np.uint8).copy()
    return from_numpy(data).to(where), data.size


def _unpickle_tensor(tensor: Any, size: int) -> Any:
    return pickle.loads(tensor.cpu().numpy().tobytes()[:size])


def _pad_bytes(data: Any, size: int) -> Any:
    """Return the bytes in a tensor of a size on which all ranks agree."""
    wide = data.new_zeros(size)
    wide[: data.numel()].copy_(data)
    return wide


def _concatenate(parts: list[Any], size: int, where: Any) -> Any:
    """Return one byte tensor of `size` bytes that begins with the concatenated parts."""
    whole = creation.empty(size, dtype=uint8, device=where)
    at = 0
    for part in parts:
        whole[at : at + part.numel()].copy_(part)
        at += part.numel()
    return whole


def _fill(objects: list[Any], whole: Any, sizes: list[int]) -> None:
    at = 0
    for place, size in enumerate(sizes):
        objects[place] = _unpickle_tensor(whole[at : at + size], size)
        at += size


def _all_sizes(size: int, group: ProcessGroup, where: Any) -> list[int]:
    """Return the number of bytes of each rank's object."""
    sizes = [creation.empty(1, dtype=int64, device=where) for _ in range(group.size())]
    all_gather(sizes, new_tensor([size], dtype=int64).to(where), group)
    return [int(one.item()) for one in sizes]
