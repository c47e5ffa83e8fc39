"""Collectives as methods of `ProcessGroup`, which hooks and older programs call.

Ranks are numbers within the group. All methods return a `Work` immediately. An argument may be one tensor or a list
with one tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from flambeau.distributed.collectives import collective_checks, collectives, messages
from flambeau.distributed.collectives.collective_options import CollectiveOptions
from flambeau.distributed.collectives.reduce_op import ReduceOp
from flambeau.distributed.work import Work
from flambeau.distributed.world import ProcessGroup
from flambeau.tensor.tensor import Tensor

Limit = timedelta | None


def allreduce(group: ProcessGroup, tensors: Any, op: Any = ReduceOp.SUM, timeout: Limit = None) -> Work:
    """Call `torch.distributed.all_reduce` for this group."""
    return _set_timeout(collectives.all_reduce(_one(tensors), op, group, True), timeout)


def broadcast(group: ProcessGroup, tensors: Any, root: int = 0, timeout: Limit = None) -> Work:
    """Call `torch.distributed.broadcast` for this group."""
    return _set_timeout(
        collectives.broadcast(_one(tensors), group=group, async_op=True, group_src=root), timeout
    )


def reduce(
    group: ProcessGroup, tensors: Any, root: int = 0, op: Any = ReduceOp.SUM, timeout: Limit = None
) -> Work:
    """Call `torch.distributed.reduce` for this group."""
    work = collectives.reduce(_one(tensors), op=op, group=group, async_op=True, group_dst=root)
    return _set_timeout(work, timeout)


def allgather(group: ProcessGroup, output_tensors: Any, input_tensors: Any, timeout: Limit = None) -> Work:
    """Call `torch.distributed.all_gather` for this group."""
    outputs = _list(output_tensors, input_tensors)
    return _set_timeout(collectives.all_gather(outputs, _one(input_tensors), group, True), timeout)


def gather(
    group: ProcessGroup, output_tensors: Any, input_tensors: Any, root: int = 0, timeout: Limit = None
) -> Work:
    """Call `torch.distributed.gather` for this group. Ranks other than `root` pass an empty list of outputs."""
    outputs = _list(output_tensors, input_tensors)
    work = collectives.gather(_one(input_tensors), outputs, group=group, async_op=True, group_dst=root)
    return _set_timeout(work, timeout)


def scatter(
    group: ProcessGroup, output_tensors: Any, input_tensors: Any, root: int = 0, timeout: Limit = None
) -> Work:
    """Call `torch.distributed.scatter` for this group. Ranks other than `root` pass an empty list of inputs."""
    inputs = _list(input_tensors, output_tensors)
    work = collectives.scatter(_one(output_tensors), inputs, group=group, async_op=True, group_src=root)
    return _set_timeout(work, timeout)


def reduce_scatter(
    group: ProcessGroup,
    output_tensors: Any,
    input_tensors: Any,
    op: Any = ReduceOp.SUM,
    timeout: Limit = None,
) -> Work:
    """Call `torch.distributed.reduce_scatter` for this group."""
    inputs = _list(input_tensors, output_tensors)
    return _set_timeout(collectives.reduce_scatter(_one(output_tensors), inputs, op, group, True), timeout)


def all_gather_single(group: ProcessGroup, output: Any, input: Any) -> Work:
    """Call `torch.distributed.all_gather_single` for this group."""
    return _set_timeout(collectives.all_gather_single(output, input, group, True), None)


def reduce_scatter_single(group: ProcessGroup, outputTensor: Any, inputTensor: Any) -> Work:  # noqa: N803
    """Call `torch.distributed.reduce_scatter_single` for this group; a sum."""
    return _set_timeout(
        collectives.reduce_scatter_single(outputTensor, inputTensor, ReduceOp.SUM, group, True), None
    )


def alltoall(group: ProcessGroup, output_tensors: Any, input_tensors: Any, timeout: Limit = None) -> Work:
    """Call `torch.distributed.all_to_all` for this group."""
    work = collectives.all_to_all(list(output_tensors), list(input_tensors), group, True)
    return _set_timeout(work, timeout)


def all_to_all_single(
    group: ProcessGroup,
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    timeout: Limit = None,
) -> Work:
    """Call `torch.distributed.all_to_all_single` for this group; no sizes: equal parts."""
    work = collectives.all_to_all_single(
        output, input, output_split_sizes, input_split_sizes, group, async_op=True
    )
    return _set_timeout(work, timeout)


def allreduce_coalesced(
    group: ProcessGroup, tensors: Sequence[Any], op: Any = ReduceOp.SUM, timeout: Limit = None
) -> Work:
    """Call `torch.distributed.all_reduce` for this group, for several tensors of one dtype."""
    inputs = _several(tensors, "tensors")
    collective_checks.same_dtype(inputs)
    word = collective_checks.operation(op, inputs, "all_reduce")
    return _set_timeout(group.backend_for(inputs[0]).all_reduce(inputs, word, True), timeout)


def all_gather_single_coalesced(
    group: ProcessGroup, outputs: Sequence[Any], inputs: Sequence[Any], timeout: Limit = None
) -> Work:
    """Call `torch.distributed.all_gather_single` for this group: with several tensors."""
    wide, narrow = _several(outputs, "outputs"), _several(inputs, "inputs")
    backend = group.backend_for(narrow[0])
    for output, tensor in zip(wide, narrow, strict=True):
        collective_checks.times(output, tensor, group.size(), ("output", "input"), backend.name)
    return _set_timeout(backend.all_gather_into(wide, narrow, True), timeout)


def reduce_scatter_single_coalesced(
    group: ProcessGroup,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    op: Any = ReduceOp.SUM,
    timeout: Limit = None,
) -> Work:
    """Call `torch.distributed.reduce_scatter_single` for this group: with several tensors."""
    narrow, wide = _several(outputs, "outputs"), _several(inputs, "inputs")
    backend, word = group.backend_for(wide[0]), collective_checks.operation(op, narrow, "reduce_scatter")
    for output, tensor in zip(narrow, wide, strict=True):
        collective_checks.times(tensor, output, group.size(), ("input", "output"), backend.name)
    return _set_timeout(backend.reduce_scatter_from(narrow, wide, word, True), timeout)


def barrier(group: ProcessGroup, timeout: Limit = None, device_ids: Any = None) -> Work:
    """Call `torch.distributed.barrier` for this group."""
    return _set_timeout(collectives.barrier(group, True, device_ids), timeout)


def monitored_barrier(group: ProcessGroup, timeout: Limit = None, wait_all_ranks: bool = False) -> None:
    """Call `torch.distributed.monitored_barrier` for this group."""
    collectives.monitored_barrier(group, timeout, wait_all_ranks)


def send(group: ProcessGroup, tensors: Any, dstRank: int, tag: int) -> Work:  # noqa: N803
    """Call `torch.distributed.isend` for this group."""
    return _set_timeout(messages.isend(_one(tensors), group=group, tag=tag, group_dst=dstRank), None)


def recv(group: ProcessGroup, tensors: Any, srcRank: int, tag: int) -> Work:  # noqa: N803
    """Call `torch.distributed.irecv` for this group."""
    return _set_timeout(messages.irecv(_one(tensors), group=group, tag=tag, group_src=srcRank), None)


def recv_anysource(group: ProcessGroup, tensors: Any, tag: int) -> Work:
    """Call `torch.distributed.irecv` for this group, to receive from any rank."""
    return _set_timeout(messages.irecv(_one(tensors), group=group, tag=tag), None)


def _one(tensors: Any) -> Any:
    """Return the tensor of an argument that is a tensor or a list of one.

    Raises:
        RuntimeError: If the list does not have exactly one tensor.
    """
    if isinstance(tensors, Sequence):
        if len(tensors) != 1:
            raise RuntimeError(f"Expecting one tensor only but got {len(tensors)}")
        return tensors[0]
    return tensors


def _several(tensors: Any, name: str) -> list[Any]:
    """Return one tensor or more, in any sequence. Raises TypeError for something else, or NotImplementedError for
    none.
    """
    inputs = list(tensors) if isinstance(tensors, Sequence) else tensors
    collective_checks.tensor_list(inputs, name)
    collective_checks.some(inputs)
    return list(inputs)


def _list(tensors: Any, beside: Any) -> list[Any]:
    """Return the tensors by rank from a list, or from a list with one list if `beside` is a list of tensors."""
    if isinstance(beside, Tensor):
        return list(tensors)
    return list(tensors[0]) if len(tensors) else []


def _set_timeout(work: Work | None, timeout: Limit) -> Work:
    assert work is not None  # not None, because this rank is a member
    work.limit = collective_checks.timeout(timeout)
    return work


_NAMES = {
    "_allgather_base": all_gather_single, "_reduce_scatter_base": reduce_scatter_single,
    "alltoall_base": all_to_all_single, "allgather_into_tensor_coalesced": all_gather_single_coalesced,
    "reduce_scatter_tensor_coalesced": reduce_scatter_single_coalesced,
}  # fmt: skip
_CALLS = (
    allreduce, broadcast, reduce, allgather, gather, scatter, reduce_scatter, all_gather_single, reduce_scatter_single,
    allreduce_coalesced, all_gather_single_coalesced, reduce_scatter_single_coalesced,
    alltoall, all_to_all_single, barrier, monitored_barrier, send, recv, recv_anysource,
)  # fmt: skip


def bind() -> None:
    """Add these methods to `ProcessGroup`. They are defined here because they need the collectives."""
    for name, call in {**{call.__name__: call for call in _CALLS}, **_NAMES}.items():
        setattr(ProcessGroup, name, _or_options(call))


def _or_options(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let the last argument of a method be a `CollectiveOptions` in place of keywords."""

    @functools.wraps(call)
    def method(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.pop("opts", args[-1] if args else None)
        if not isinstance(options, CollectiveOptions):
            return call(group, *args, **kwargs)
        tensors = [arg for arg in args if arg is not options]
        work = call(group, *tensors, **options.as_keywords(), **kwargs)
        if not options.asyncOp:
            work.wait()
        return work

    return method
