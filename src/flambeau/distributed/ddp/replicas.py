"""Replicas of a model: checks that all ranks have equal parameters, buckets, initial values, sums over ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from flambeau.core.device import CPU, device
from flambeau.core.dtype import int64
from flambeau.core.errors import NotSupportedError
from flambeau.distributed.collectives import collective_checks
from flambeau.distributed.ddp.buckets import copy_all, parts_of
from flambeau.tape.mode import recording
from flambeau.tensor.exchange.data import tensor as new_tensor
from flambeau.tensor.functions.creation import empty


def reduce_in_place(group: Any, tensor: Any, op: str = "sum", async_op: bool = False) -> Any:
    """Reduce a tensor over a group in place and return the work. Waits for it unless `async_op`."""
    work = group.backend_for(tensor).all_reduce([tensor], op, async_op)
    if not async_op:
        work.wait()
    return work


def _verify_params_across_processes(process_group: Any, params: Sequence[Any], logger: object = None) -> None:
    """Raise RuntimeError if number, sizes or strides of this rank's parameters differ from those of rank 0."""
    collective_checks.process_group(process_group, "process_group")
    place = _place(process_group, params[0].meta.device)
    rank = process_group.rank()
    for other, count in enumerate(_gather_numbers(process_group, len(params), place)):
        if count != len(params):
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {rank} has {len(params)} params, while rank "
                f"{other} has inconsistent {count} params."
            )
    mine = [_shape_and_strides(p.meta) for p in params]
    flat = [number for sizes, strides in mine for number in (*sizes, *strides)]
    theirs = iter(_from_first(process_group, flat, place))
    for index, (sizes, strides) in enumerate(mine):
        for kind, numbers in (("sizes", sizes), ("strides", strides)):
            if [next(theirs, -1) for _ in numbers] != numbers:
                tag = f"[{rank}]: " if kind == "sizes" else ""
                raise RuntimeError(
                    f"{tag}params[{index}] in this process with sizes {list(sizes)} appears not to match {kind} of "
                    "the same param in process 0."
                )


def _shape_and_strides(meta: Any) -> tuple[list[int], list[int]]:
    return list(meta.shape), list(meta.strides)


def _gather_numbers(group: Any, number: int, place: device) -> list[int]:
    """Return one number of every rank, by rank."""
    mine = new_tensor([number], dtype=int64, device=place)
    others = mine.new_zeros(group.size())
    group.backend_for(mine).all_gather(list(others.split(1)), mine).wait()
    return _read(others, [number] * group.size())


def _from_first(group: Any, numbers: Sequence[int], place: device) -> list[int]:
    """Return the numbers of rank 0. Each rank passes equally many."""
    if not numbers:
        return []
    held = new_tensor(list(numbers), dtype=int64, device=place)
    group.backend_for(held).broadcast(held, 0).wait()
    return _read(held, numbers)


def _read(numbers: Any, mine: Sequence[int]) -> list[int]:
    """Return exchanged numbers. Virtual GPUs without data cannot read them; there all ranks count as equal to this
    one.
    """
    try:
        return [int(n) for n in numbers.tolist()]
    except NotSupportedError:
        return list(mine)


def _place(group: Any, where: device) -> device:
    """Return the device for exchanging small numbers: the CPU if the group supports it, which avoids a wait."""
    return CPU if "cpu" in group.device_types else where


def same_buckets(
    group: Any, indices: Sequence[Sequence[int]], limits: Sequence[int], where: device
) -> tuple[list[list[int]], list[int]]:
    """Return rank 0's buckets of the parameters as (indices of each, limit of each)."""
    if group.size() == 1:
        return [list(some) for some in indices], list(limits)
    count = sum(map(len, indices))
    room = 2 * count + 1  # there are at most as many buckets as parameters
    mine = [len(indices), *[i for some in indices for i in some], *[len(some) for some in indices]]
    numbers = _from_first(group, (mine + [0] * room)[:room], _place(group, where))
    flat, sizes = iter(numbers[1 : 1 + count]), numbers[1 + count : 1 + count + numbers[0]]
    limits = list(limits) + [limits[-1]] * (len(sizes) - len(limits))
    return [[next(flat) for _ in range(size)] for size in sizes], limits[: len(sizes)]


def _broadcast_coalesced(process_group: Any, tensors: Sequence[Any], buffer_size: int, src: int = 0) -> None:
    """Copy these tensors from rank `src` of the group to all ranks, in messages of about `buffer_size` bytes.

    Autograd does not count it as a change in place: values that nodes have saved are not protected.
    """
    if process_group.size() == 1:
        return
    mine = process_group.rank() == src
    with recording(False):
        for some in _batches(tensors, buffer_size):
            metas = [t.meta for t in some]
            flat = empty(sum([meta.numel for meta in metas]), dtype=metas[0].dtype, device=metas[0].device)
            if mine:
                copy_all(parts_of(flat, metas), some)
            process_group.backend_for(flat).broadcast(flat, src).wait()
            if not mine:
                versions = [t.counter.version for t in some]
                copy_all([t.detach() for t in some], parts_of(flat, metas))
                for t, version in zip(some, versions, strict=True):
                    t.counter.version = version


def _batches(tensors: Sequence[Any], nbytes: int) -> Iterator[list[Any]]:
    """Yield tensors of one dtype and device in order, in groups of at most this many bytes."""
    open_: dict[Any, tuple[list[Any], int]] = {}
    for t in tensors:
        key = (t.meta.dtype, t.meta.device)
        some, size = open_.get(key) or ([], 0)
        some.append(t)
        size += t.meta.nbytes
        open_[key] = some, size
        if size >= nbytes:
            yield open_.pop(key)[0]
    for some, _ in open_.values():
        yield some


def _sync_module_states(
    module: Any,
    process_group: Any,
    broadcast_bucket_size: int,
    src: int,
    params_and_buffers_to_ignore: Collection[str],
    broadcast_buffers: bool = True,
) -> None:
    """Copy the parameters and buffers of rank `src` of the group to all ranks."""
    states = [p.detach() for name, p in module.named_parameters() if name not in params_and_buffers_to_ignore]
    if broadcast_buffers:
        states += [
            b.detach() for name, b in module.named_buffers() if name not in params_and_buffers_to_ignore
        ]
    if states:
        _broadcast_coalesced(process_group, states, broadcast_bucket_size, src)
