"""torch.distributed._functional_collectives: collectives that return new tensors and have derivatives.

PyTorch's functions return tensors that wait when they are first used. Flambeau enqueues each collective on the current
stream and returns a plain tensor, so there is nothing to wait for. A group is a ProcessGroup, the name of one, a mesh
of one dimension, a pair (mesh, dimension) or, deprecated, the list of ranks of an existing group.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.collectives import collective_checks
from flambeau.distributed.collectives.reduce_op import RedOpType
from flambeau.distributed.device_mesh import DeviceMesh
from flambeau.distributed.nn.functional import _AlltoAllSingle, _Broadcast
from flambeau.distributed.process_groups import get_rank, named_group
from flambeau.distributed.world import ProcessGroup, world
from flambeau.ops.shape.joining import cat
from flambeau.tensor.arguments.typing import contiguous_format
from flambeau.tensor.call import call

__all__ = [
    "AsyncCollectiveTensor", "all_gather_into_tensor_coalesced", "all_gather_single", "all_gather_single_autograd",
    "all_gather_single_coalesced", "all_gather_tensor", "all_gather_tensor_autograd", "all_reduce",
    "all_reduce_coalesced", "all_to_all_single", "all_to_all_single_autograd", "broadcast", "permute_tensor",
    "reduce_scatter_single", "reduce_scatter_single_autograd", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor", "reduce_scatter_tensor_autograd", "reduce_scatter_tensor_coalesced", "wait_tensor",
]  # fmt: skip

explain_absent_names(globals(), "torch.distributed._functional_collectives")


class AsyncCollectiveTensor:
    """The result type of PyTorch's functional collectives. No tensor here has it, because results need no wait."""


def wait_tensor(tensor: Any) -> Any:
    """Return the tensor. Work enqueued afterwards is ordered after the tensor's collective."""
    return tensor


def broadcast(self: Any, src: int, group: Any, tag: str = "") -> Any:
    """Return the values of global rank `src` on all ranks.

    In backward rank `src` receives the sum of all ranks' gradients and the other ranks receive zeros. PyTorch defines
    no
    derivative: it warns and passes each rank's own gradient.
    """
    return _Broadcast.apply(src, _resolve_group(group), self.contiguous())


def all_reduce(self: Any, reduceOp: str, group: Any, tag: str = "") -> Any:  # noqa: N803
    """Return the reduction over all ranks.

    Args:
        reduceOp: "sum", "avg", "product", "min", "max", "band", "bor" or "bxor".

    Raises:
        RuntimeError: If `reduceOp` is another word, or in backward if it is not "sum".
    """
    return _AllReduce.apply(_resolve_group(group), reduceOp.lower(), "all_reduce", self)[0]


def all_reduce_coalesced(self: list[Any], reduceOp: str, group: Any, tag: str = "") -> list[Any]:  # noqa: N803
    """Return `all_reduce` of several tensors in one call."""
    return list(_AllReduce.apply(_resolve_group(group), reduceOp.lower(), "all_reduce_coalesced", *self))


def all_gather_single(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
    """Return every rank's tensor, joined along a dimension."""
    found = _resolve_group(group)
    whole = _AllGather.apply(found, self)[0]
    return whole if gather_dim == 0 else call(cat, whole.chunk(found.size()), (gather_dim,))


def all_gather_single_coalesced(self: list[Any], group: Any, tag: str = "") -> list[Any]:
    """Return `all_gather_single` along the first dimension of several tensors in one call."""
    return list(_AllGather.apply(_resolve_group(group), *self))


def reduce_scatter_single(
    self: Any,
    reduceOp: str,  # noqa: N803
    scatter_dim: int,
    group: Any,
    tag: str = "",
) -> Any:
    """Return this rank's part of the reduction over all ranks: part n along `scatter_dim` goes to rank n.

    Raises:
        AssertionError: If the dimension cannot be divided into equal parts.
        RuntimeError: As for `all_reduce`.
    """
    found = _resolve_group(group)
    if self.size(scatter_dim) % found.size():
        raise AssertionError(
            f"input dimension 0 ({self.size(0)} must be a multiple of group_size {found.size()})"
        )
    rows = _in_rows(self, scatter_dim, found.size())
    return _ReduceScatter.apply(found, reduceOp.lower(), "reduce_scatter_tensor", rows)[0]


def reduce_scatter_single_coalesced(
    inputs: list[Any],
    reduceOp: str,  # noqa: N803
    scatter_dim: list[int],
    group: Any,
    tag: str = "",
) -> list[Any]:
    """Return `reduce_scatter_single` of several tensors in one call, each along its own dimension."""
    found = _resolve_group(group)
    if len(scatter_dim) != len(inputs):
        raise AssertionError(
            f"Length of scatter_dim ({len(scatter_dim)}) must equal length of inputs ({len(inputs)})"
        )
    for place, (dim, tensor) in enumerate(zip(scatter_dim, inputs, strict=True)):
        if tensor.size(dim) % found.size():
            raise AssertionError(
                f"input dimension {dim} ({tensor.size(dim)} must be a multiple of group_size {found.size()} for "
                f"tensor at index {place}"
            )
    rows = [_in_rows(t, dim, found.size()) for dim, t in zip(scatter_dim, inputs, strict=True)]
    return list(_ReduceScatter.apply(found, reduceOp.lower(), "reduce_scatter_tensor_coalesced", *rows))


def all_to_all_single(
    self: Any,
    output_split_sizes: list[int] | None,
    input_split_sizes: list[int] | None,
    group: Any,
    tag: str = "",
) -> Any:
    """Send part n of the first dimension to rank n and receive part n of the result from it.

    Parts have equal sizes by default.

    Raises:
        AssertionError: If only one side has sizes, or a size is not an int.
    """
    for name, sizes in (("output", output_split_sizes), ("input", input_split_sizes)):
        if sizes is not None and not all(isinstance(size, int) for size in sizes):
            raise AssertionError(f"All {name}_split_sizes must be int or SymInt, got {sizes}")
    found = _resolve_group(group)
    if (output_split_sizes is None) != (input_split_sizes is None):
        raise AssertionError(
            "output_split_sizes and input_split_sizes must either be specified together or both set to None"
        )
    even = [self.shape[0] // found.size()] * found.size()
    received, sent = output_split_sizes or even, input_split_sizes or even
    output = self.new_empty((sum(received), *self.shape[1:]))
    return _AlltoAllSingle.apply(found, output, received, sent, self.contiguous())


def permute_tensor(self: Any, src_dst: list[int], group: Any, tag: str = "") -> Any:
    """Return the tensor of the rank that sends to this one. Rank n of the group sends to `src_dst[n]`."""
    found = _resolve_group(group)
    mine, length = found.rank(), self.shape[0]
    sent, received = [0] * found.size(), [0] * found.size()
    for source, target in enumerate(src_dst):
        if source == mine:
            sent[target] = length
        if target == mine:
            received[source] = length
    return all_to_all_single(self, received, sent, found)


# -- other names: the derivatives are there under each ----------------------------------------------------------


def _with_name(name: str, function: Any, now: str = "") -> Any:
    """Return a copy of a function with another name.

    Args:
        now: The name that PyTorch recommends if it has deprecated `name`; the copy then warns.
    """

    @functools.wraps(function)
    def other(*args: Any, **named: Any) -> Any:
        if now:
            stem = "torch.distributed._functional_collectives"
            warnings.warn(
                f"`{stem}.{name}` is deprecated. Please use `{stem}.{now}` instead.",
                FutureWarning,
                stacklevel=2,
            )
        return function(*args, **named)

    other.__name__ = other.__qualname__ = name
    other.__doc__ = f"`{function.__name__}` under {'a former' if now else 'another'} name."
    return other


all_gather_single_autograd = _with_name("all_gather_single_autograd", all_gather_single)
reduce_scatter_single_autograd = _with_name("reduce_scatter_single_autograd", reduce_scatter_single)
all_to_all_single_autograd = _with_name("all_to_all_single_autograd", all_to_all_single)
all_gather_tensor = _with_name("all_gather_tensor", all_gather_single, "all_gather_single")
all_gather_tensor_autograd = _with_name(
    "all_gather_tensor_autograd", all_gather_single, "all_gather_single_autograd"
)
reduce_scatter_tensor = _with_name("reduce_scatter_tensor", reduce_scatter_single, "reduce_scatter_single")
reduce_scatter_tensor_autograd = _with_name(
    "reduce_scatter_tensor_autograd", reduce_scatter_single, "reduce_scatter_single_autograd"
)
all_gather_into_tensor_coalesced = _with_name(
    "all_gather_into_tensor_coalesced", all_gather_single_coalesced, "all_gather_single_coalesced"
)
reduce_scatter_tensor_coalesced = _with_name(
    "reduce_scatter_tensor_coalesced", reduce_scatter_single_coalesced, "reduce_scatter_single_coalesced"
)


# -- collectives of lists of tensors, with the group's ranks ----------------------------------------------------


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, op: str, name: str, *tensors: Any) -> Any:
        ctx.group, ctx.op, ctx.called = group, op, name
        word = collective_checks.operation(_operation(op), tensors, name)
        totals = [tensor.clone(memory_format=contiguous_format) for tensor in tensors]
        group.backend_for(totals[0]).all_reduce(totals, word).wait()
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _check_sum(ctx)
        return None, None, None, *_AllReduce.apply(ctx.group, ctx.op, ctx.called, *grads)


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, *tensors: Any) -> Any:
        ctx.group = group
        if not all(tensor.dim() for tensor in tensors):
            raise RuntimeError("all_gather_single: tensors without dimensions cannot be joined")
        inputs = [tensor.contiguous() for tensor in tensors]
        outputs = [t.new_empty((group.size() * t.shape[0], *t.shape[1:])) for t in inputs]
        group.backend_for(inputs[0]).all_gather_into(outputs, inputs).wait()
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *_ReduceScatter.apply(ctx.group, "sum", "reduce_scatter_tensor", *grads)


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, op: str, name: str, *tensors: Any) -> Any:
        ctx.group, ctx.op, ctx.called = group, op, name
        word = collective_checks.operation(_operation(op), tensors, name)
        inputs = [tensor.contiguous() for tensor in tensors]
        outputs = [t.new_empty((t.shape[0] // group.size(), *t.shape[1:])) for t in inputs]
        group.backend_for(inputs[0]).reduce_scatter_from(outputs, inputs, word).wait()
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _check_sum(ctx)
        return None, None, None, *_AllGather.apply(ctx.group, *grads)


# -- what they share ------------------------------------------------------------------------------------------


def _resolve_group(group: Any) -> ProcessGroup:
    """Return the group that an argument names."""
    if isinstance(group, ProcessGroup):
        return group
    if isinstance(group, str):
        return named_group(group)
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise AssertionError("Only 1D mesh is supported, pass in (DeviceMesh, int) together if mesh > 1D")
        return group.get_group()
    if isinstance(group, tuple):
        if len(group) == 2 and isinstance(group[0], DeviceMesh) and isinstance(group[1], int):
            return group[0].get_group(group[1])
        raise ValueError(
            f"Invalid tuple for group must be (DeviceMesh, int). Instead got {(type(group[0]), type(group[1]))}"
        )
    if isinstance(group, list):
        return _of_ranks(group)
    raise ValueError(f"Unsupported group type: {type(group)}, {group}")


def _of_ranks(ranks: list[int]) -> ProcessGroup:
    warnings.warn(
        "The combination of ranks + tag as process group identifier has been deprecated. Please switch to using "
        "ProcessGroup, DeviceMesh, or group name instead.",
        FutureWarning,
        stacklevel=4,
    )
    for group in world().groups.values():
        if list(group.ranks) == ranks:
            return group
    raise ValueError(f"there is no group of the ranks {ranks}, of which this one is {get_rank()}")


def _operation(word: str) -> RedOpType:
    found = RedOpType.__members__.get(word.upper())
    if found in (None, RedOpType.PREMUL_SUM):
        raise RuntimeError(f"Unrecognized reduce_op: {word}")
    return found


def _check_sum(ctx: Any) -> None:
    if ctx.op != "sum":
        raise RuntimeError(f"{ctx.called} backward only supports 'sum' reduction, got '{ctx.op}'")


def _in_rows(tensor: Any, dim: int, size: int) -> Any:
    """Return a tensor whose parts along the first dimension are the parts of `tensor` along dimension `dim`."""
    return tensor if dim == 0 else call(cat, tensor.chunk(size, dim), (0,))
