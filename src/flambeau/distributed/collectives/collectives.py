"""PyTorch's collective functions on tensors. All ranks of a group call each, in the same order.

`async_op=True` returns a `Work`. Otherwise the call returns when the result may be used: on GPUs by the current stream,
on the CPU by the host. Calls by ranks outside of the group warn and do nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.device import device
from flambeau.distributed.backend_names import Backend as Name
from flambeau.distributed.collectives import collective_checks
from flambeau.distributed.collectives.coalescing import add_work, hold_back, not_yet
from flambeau.distributed.collectives.reduce_op import ReduceOp
from flambeau.distributed.process_groups import get_backend, group_or_default, group_rank_of, is_outside
from flambeau.distributed.work import Several, Work
from flambeau.distributed.world import ProcessGroup

_UNNAMED_DEVICE = (
    "barrier(): using the device under current context. "
    "You can specify `device_id` in `init_process_group` to mute this warning."
)


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Reduce a tensor over all ranks, in place. Afterwards it is bitwise equal on all ranks."""
    collective_checks.single(tensor, "tensor")
    if is_outside(group, "all_reduce"):
        return None
    word = collective_checks.operation(op, [tensor], "all_reduce")
    if hold_back(group, "all_reduce", tensor, tensor, word):
        return not_yet(async_op)
    return _done(group_or_default(group).backend_for(tensor).all_reduce([tensor], word, async_op), async_op)


def all_reduce_coalesced(
    tensors: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """Reduce several tensors in one call. With `async_op`, return a Future. Deprecated, as in PyTorch."""
    _warn_deprecated("all_reduce_coalesced")
    tensors = tensors if isinstance(tensors, list) else [tensors]
    collective_checks.tensor_list(tensors, "tensor")
    collective_checks.same_dtype(tensors)
    if is_outside(group, "all_reduce_coalesced"):
        return None
    collective_checks.some(tensors)
    word = collective_checks.operation(op, tensors, "all_reduce")
    work = _done(
        group_or_default(group).backend_for(tensors[0]).all_reduce(tensors, word, async_op), async_op
    )
    return None if work is None else work.get_future()


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the values of rank `src` (global; `group_src`: in the group) to all ranks."""
    found: Any = group_or_default(group)
    root = group_rank_of(found, src, group_src) if isinstance(found, ProcessGroup) else 0
    collective_checks.single(tensor, "tensor")
    if is_outside(group, "broadcast"):
        return None
    collective_checks.root(root, found.size(), "broadcast")
    return _done(found.backend_for(tensor).broadcast(tensor, root, async_op), async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce a tensor over all ranks. Only rank `dst` gets the result, in place."""
    found: Any = group_or_default(group)
    root = group_rank_of(found, dst, group_dst) if isinstance(found, ProcessGroup) else 0
    collective_checks.single(tensor, "tensor")
    if is_outside(group, "reduce"):
        return None
    collective_checks.root(root, found.size(), "reduce")
    word = collective_checks.operation(op, [tensor], "reduce")
    return _done(found.backend_for(tensor).reduce(tensor, root, word, async_op), async_op)


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """Gather every rank's tensor into a list by rank."""
    collective_checks.tensor_list(tensor_list, "tensor_list")
    collective_checks.single(tensor, "tensor")
    collective_checks.same_dtype(tensor_list, tensor)
    if is_outside(group, "all_gather"):
        return None
    found = group_or_default(group)
    collective_checks.as_long(tensor_list, found.size(), "allgather")
    collective_checks.like([tensor_list[found.rank()]], tensor, "allgather")
    return _done(found.backend_for(tensor).all_gather(tensor_list, tensor, async_op), async_op)


def all_gather_single(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """Gather every rank's tensor into one tensor, concatenated along the first dim or stacked."""
    collective_checks.single(input_tensor, "input_tensor")
    collective_checks.single(output_tensor, "output_tensor")
    if is_outside(group, "all_gather_single"):
        return None
    found = group_or_default(group)
    backend = found.backend_for(input_tensor)
    collective_checks.times(output_tensor, input_tensor, found.size(), ("output", "input"), backend.name)
    if hold_back(found, "all_gather_single", output_tensor, input_tensor, None):
        return not_yet(async_op)
    return _done(backend.all_gather_into([output_tensor], [input_tensor], async_op), async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """Call `all_gather_single`, by its former name."""
    _warn_renamed("all_gather_into_tensor", "all_gather_single")
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def _all_gather_base(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """Call `all_gather_single`, by its oldest name."""
    _warn_renamed("_all_gather_base", "all_gather_single")
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def all_gather_coalesced(
    output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    """Gather several tensors of each rank: `output_tensor_lists[rank][n]` is its n-th. Deprecated in PyTorch."""
    _warn_deprecated("all_gather_coalesced")
    if is_outside(group, "all_gather_coalesced"):
        return None
    collective_checks.tensor_list(input_tensor_list, "input_tensor_list")
    collective_checks.some(input_tensor_list)
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    for tensors in output_tensor_lists:
        collective_checks.tensor_list(tensors, "output_tensor_lists")
    found = group_or_default(group)
    collective_checks.as_long(output_tensor_lists, found.size(), "allgather_coalesced")
    works = [
        found.backend_for(tensor).all_gather(
            [outputs[n] for outputs in output_tensor_lists], tensor, async_op
        )
        for n, tensor in enumerate(input_tensor_list)
    ]
    joined = Several(works)
    return joined.get_future() if async_op else _done(joined, False)


def gather(
    tensor: Any,
    gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Gather every rank's tensor into rank `dst`'s list (default: rank 0)."""
    collective_checks.single(tensor, "tensor")
    outputs = gather_list or []
    collective_checks.tensor_list(outputs, "gather_list")
    collective_checks.same_dtype(tensor, outputs)
    if is_outside(group, "gather"):
        return None
    found = group_or_default(group)
    root = _root(found, dst, group_dst)
    if found.rank() == root and not outputs:
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if found.rank() != root and outputs:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    collective_checks.root(root, found.size(), "gather")
    if outputs:
        collective_checks.as_long(outputs, found.size(), "gather")
        collective_checks.like(outputs, tensor, "gather")
    return _done(found.backend_for(tensor).gather(outputs or None, tensor, root, async_op), async_op)


def scatter(
    tensor: Any,
    scatter_list: Any = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Send the n-th tensor of rank `src`'s list (default: rank 0's) to rank n."""
    collective_checks.single(tensor, "tensor")
    inputs = scatter_list or []
    collective_checks.tensor_list(inputs, "scatter_list")
    collective_checks.same_dtype(tensor, inputs)
    if is_outside(group, "scatter"):
        return None
    found = group_or_default(group)
    root = _root(found, src, group_src)
    if found.rank() == root and not inputs:
        raise ValueError("Argument ``scatter_list`` must be specified on source rank.")
    if found.rank() != root and inputs:
        raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
    collective_checks.root(root, found.size(), "scatter")
    if inputs:
        collective_checks.as_long(inputs, found.size(), "scatter")
        collective_checks.like(inputs, tensor, "scatter")
    return _done(found.backend_for(tensor).scatter(tensor, inputs or None, root, async_op), async_op)


def reduce_scatter(
    output: Any, input_list: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce a list over all ranks; rank n gets its n-th tensor."""
    collective_checks.single(output, "output")
    collective_checks.tensor_list(input_list, "input_list")
    collective_checks.same_dtype(output, input_list)
    if is_outside(group, "reduce_scatter"):
        return None
    found = group_or_default(group)
    word = collective_checks.operation(op, [output], "reduce_scatter")
    collective_checks.as_long(input_list, found.size(), "reduce_scatter")
    collective_checks.like([input_list[found.rank()]], output, "reduce_scatter")
    return _done(found.backend_for(output).reduce_scatter(output, input_list, word, async_op), async_op)


def reduce_scatter_single(
    output: Any, input: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce a tensor over all ranks; rank n gets its n-th part."""
    collective_checks.single(output, "output")
    collective_checks.single(input, "input")
    if is_outside(group, "reduce_scatter_single"):
        return None
    found = group_or_default(group)
    word = collective_checks.operation(op, [output], "reduce_scatter")
    backend = found.backend_for(output)
    collective_checks.times(input, output, found.size(), ("input", "output"), backend.name)
    if hold_back(found, "reduce_scatter_single", output, input, word):
        return not_yet(async_op)
    return _done(backend.reduce_scatter_from([output], [input], word, async_op), async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Call `reduce_scatter_single`, by its former name."""
    _warn_renamed("reduce_scatter_tensor", "reduce_scatter_single")
    return reduce_scatter_single(output, input, op, group, async_op)


def _reduce_scatter_base(
    output: Any, input: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Call `reduce_scatter_single`, by its oldest name."""
    _warn_renamed("_reduce_scatter_base", "reduce_scatter_single")
    return reduce_scatter_single(output, input, op, group, async_op)


def all_to_all(
    output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """Send input n to rank n and receive output n from rank n."""
    if is_outside(group, "all_to_all"):
        return None
    collective_checks.tensor_list(output_tensor_list, "output_tensor_list")
    collective_checks.tensor_list(input_tensor_list, "input_tensor_list")
    collective_checks.same_dtype(output_tensor_list, input_tensor_list)
    found = group_or_default(group)
    collective_checks.as_long(output_tensor_list, found.size(), "alltoall")
    collective_checks.as_long(input_tensor_list, found.size(), "alltoall")
    collective_checks.like([output_tensor_list[found.rank()]], input_tensor_list[found.rank()], "alltoall")
    backend = found.backend_for(input_tensor_list[0])
    return _done(backend.all_to_all(output_tensor_list, input_tensor_list, async_op), async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Send part n of `input` to rank n and receive part n of `output`. Parts of the first dim are equal by default."""
    if is_outside(group, "all_to_all_single"):
        return None
    collective_checks.single(output, "output")
    collective_checks.single(input, "input")
    collective_checks.same_dtype(output, input)
    found = group_or_default(group)
    outputs = _parts(output, output_split_sizes, found.size())
    inputs = _parts(input, input_split_sizes, found.size())
    collective_checks.like([outputs[found.rank()]], inputs[found.rank()], "alltoall_base")
    return _done(found.backend_for(input).all_to_all(outputs, inputs, async_op), async_op)


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: timedelta | None = None
) -> Work | None:
    """Block the host until all ranks of the group have called it.

    nccl's barrier is a collective on one device: the first of `device_ids`, the `device_id` of `init_process_group`,
    the device that the group's collectives used first, or the one whose index is the global rank modulo the number of
    devices.

    Args:
        group: The process group; default: all ranks.
        async_op: Return a `Work` whose `wait()` blocks, instead of blocking.
        device_ids: A list with the index of the CUDA device to use.
        timeout: How long to block at most; default: the group's timeout.
    """
    if is_outside(group, "barrier"):
        return None
    found, limit = group_or_default(group), collective_checks.timeout(timeout)
    if isinstance(device_ids, list) and device_ids:
        where: Any = device("cuda", device_ids[0])
    elif found.bound_device_id is not None:
        where = found.bound_device_id
    else:
        where = device("cpu" if "cpu" in found.device_types else "cuda")
    if where.type == "cuda" and where.index is None and found.rank() == 0:
        warn_program(_UNNAMED_DEVICE, UserWarning)
    work = found.backend_of(where.type).barrier(where.index, async_op)
    work.limit = limit
    return _done(work, async_op)


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Run a barrier of CPU ranks that reports missing ranks: the first one or, with `wait_all_ranks`, all of them.

    A rank that can never join is reported immediately, before the timeout.
    """
    if is_outside(group, "monitored_barrier"):
        return
    if get_backend(group) != Name.GLOO:
        raise ValueError("monitored_barrier is only implemented for GLOO backend.")
    if isinstance(timeout, float):
        warnings.warn(
            "Please specify timeout arg as a timedelta. "
            f"Converting current value of {timeout} assuming it represents seconds",
            stacklevel=2,
        )
        timeout = timedelta(seconds=timeout)
    limit = collective_checks.timeout(timeout)
    group_or_default(group).backend_of("cpu").monitored_barrier(limit, wait_all_ranks)


# -- what they share ------------------------------------------------------------------------------------------


def _done(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return add_work(work)  # type: ignore[no-any-return]
    work.wait()
    return None


def _root(group: ProcessGroup, rank: int | None, group_rank: int | None) -> int:
    return group_rank_of(group, 0 if rank is None and group_rank is None else rank, group_rank)


def _parts(tensor: Any, sizes: Sequence[int] | None, count: int) -> list[Any]:
    """Split a tensor along its first dimension into parts of the given `sizes`, or into `count` equal parts."""
    length = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if length % count:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        sizes = [length // count] * count
    if len(sizes) != count:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(sizes) != length:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return list(tensor.split(list(sizes)))


def _warn_renamed(name: str, new: str) -> None:
    warnings.warn(
        f"`torch.distributed.{name}` is deprecated. Please use `torch.distributed.{new}` instead.",
        FutureWarning,
        stacklevel=3,
    )


def _warn_deprecated(name: str) -> None:
    warnings.warn(
        f"`torch.distributed.{name}` will be deprecated. If you must use it, please revisit our documentation later at "
        "https://pytorch.org/docs/main/distributed.html#collective-functions",
        FutureWarning,
        stacklevel=3,
    )
