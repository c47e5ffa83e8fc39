"""torch.distributed.nn.functional: collectives that return new tensors and have derivatives.

The gradient of a collective is a collective. All ranks of a group must therefore make the same calls in the same order,
forward and backward. If a rank's loss uses one result of a call, its unused results receive zeros. Gradients are
PyTorch's: those of a sum. For other operations `all_reduce` sends gradients through the same operation, and `reduce`
and `reduce_scatter` pass them on unchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.collectives import collectives
from flambeau.distributed.collectives.reduce_op import ReduceOp
from flambeau.distributed.process_groups import get_global_rank, get_rank, get_world_size, group_or_default
from flambeau.tensor.arguments.typing import contiguous_format

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter",
]  # fmt: skip

explain_absent_names(globals(), "torch.distributed.nn.functional")


def broadcast(tensor: Any, src: int, group: Any = None) -> Any:
    """Return the values of rank `src` on all ranks. In backward `src` gets the sum of all gradients, other ranks get
    zeros.
    """
    _warn_deprecated_name("broadcast", "broadcast")
    return _Broadcast.apply(src, group, tensor)


def gather(tensor: Any, dst: int = 0, group: Any = None) -> tuple[Any, ...]:
    """Return the list of every rank's tensor on rank `dst`; zeros on the other ranks."""
    found: tuple[Any, ...] = _Gather.apply(dst, group, tensor)
    return found


def scatter(tensors: Sequence[Any], src: int = 0, group: Any = None) -> Any:
    """Return tensor n of rank `src` on rank n. The tensors of the other ranks only define shapes.

    Raises:
        AssertionError: If sizes differ.
    """
    return _Scatter.apply(src, group, *tensors)


def reduce(tensor: Any, dst: int, op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """Return the reduction over all ranks on rank `dst`; a copy of `tensor` on the others."""
    return _Reduce.apply(dst, op, group, tensor)


def reduce_scatter(output: Any, input_list: Sequence[Any], op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """Return the reduction over all ranks of their n-th inputs, on rank n, written to `output`. Deprecated."""
    _warn_deprecated_name("reduce_scatter", "reduce_scatter_single")
    return _ReduceScatter.apply(op, group, output, *input_list)


def all_gather(tensor: Any, group: Any = None) -> tuple[Any, ...]:
    """Return every rank's tensor, by rank. Deprecated."""
    _warn_deprecated_name("all_gather", "all_gather_single")
    found: tuple[Any, ...] = _AllGather.apply(group, tensor)
    return found


def _all_gather_base(output_tensor: Any, input_tensor: Any, group: Any = None) -> Any:
    """Write every rank's tensor to consecutive parts of `output_tensor`, and return it."""
    return _AllGatherBase.apply(output_tensor, input_tensor, group)


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: Any = None
) -> tuple[Any, ...]:
    """Send input n to rank n, and write the tensor from rank n to output n."""
    found: tuple[Any, ...] = _AlltoAll.apply(group, output_tensor_list, *input_tensor_list)
    return found


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> Any:
    """Send part n of `input` to rank n, and write the part from rank n to part n of `output`. Deprecated."""
    _warn_deprecated_name("all_to_all_single", "all_to_all_single")
    return _AlltoAllSingle.apply(group, output, output_split_sizes, input_split_sizes, input)


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """Return the reduction over all ranks, bitwise equal on all. Deprecated."""
    _warn_deprecated_name("all_reduce", "all_reduce")
    return _AllReduce.apply(op, group, tensor)


def _warn_deprecated_name(name: str, better: str) -> None:
    warnings.warn(
        f"torch.distributed.nn.functional.{name} is deprecated, use torch.distributed._functional_collectives.{better} "
        "instead.",
        FutureWarning,
        stacklevel=3,
    )


def _is(rank: int, group: Any) -> bool:
    """Return True if this rank has the global number `rank`."""
    return get_global_rank(group_or_default(group), get_rank(group)) == rank


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Any, tensor: Any) -> Any:
        ctx.src, ctx.group = src, group
        given = tensor.clone()
        collectives.broadcast(given, src, group)
        return given

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, _Reduce.apply(ctx.src, ReduceOp.SUM, ctx.group, grad, True)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, group: Any, tensor: Any) -> Any:
        ctx.dst, ctx.group = dst, group
        tensor = tensor.contiguous()
        outputs = [tensor.new_zeros(tensor.shape) for _ in range(get_world_size(group))]
        collectives.gather(tensor, outputs if _is(dst, group) else None, dst, group)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, _Scatter.apply(ctx.dst, ctx.group, *grads)


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Any, *tensors: Any) -> Any:
        ctx.src, ctx.group = src, group
        if not all(tensor.shape == tensors[0].shape for tensor in tensors):
            raise AssertionError("scatter: the tensors are not of one size")
        output = tensors[0].new_zeros(tensors[0].shape)
        inputs = [tensor.contiguous() for tensor in tensors] if _is(src, group) else None
        collectives.scatter(output, inputs, src, group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, *_Gather.apply(ctx.src, ctx.group, grad)


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, op: Any, group: Any, tensor: Any, alone: bool = False) -> Any:
        """Reduce `tensor` in place on rank `dst` and return it; other ranks return a copy, `alone`."""
        ctx.dst, ctx.group = dst, group
        total = tensor.clone()
        collectives.reduce(total, dst, op, group)
        return total.zero_() if alone and not _is(dst, group) else total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, None, _Broadcast.apply(ctx.dst, ctx.group, grad), None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, op: Any, group: Any, output: Any, *inputs: Any) -> Any:
        ctx.group = group
        output = output.contiguous()
        collectives.reduce_scatter(output, [tensor.contiguous() for tensor in inputs], op, group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, None, *_AllGather.apply(ctx.group, grad)


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, tensor: Any) -> Any:
        ctx.group = group
        tensor = tensor.contiguous()
        outputs = [tensor.new_empty(tensor.shape) for _ in range(get_world_size(group))]
        collectives.all_gather(outputs, tensor, group)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        mine = grads[get_rank(ctx.group)]
        total = _ReduceScatter.apply(ReduceOp.SUM, ctx.group, mine.new_empty(mine.shape), *grads)
        return None, total


class _AllGatherBase(Function):
    @staticmethod
    def forward(ctx: Any, output: Any, tensor: Any, group: Any) -> Any:
        ctx.group, ctx.shape = group, tensor.shape
        collectives.all_gather_single(output, tensor.contiguous(), group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        total = grad.new_empty(ctx.shape)
        collectives.reduce_scatter_single(total, grad.contiguous(), ReduceOp.SUM, ctx.group)
        return None, total, None


class _AlltoAll(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, outputs: Sequence[Any], *inputs: Any) -> Any:
        ctx.group = group
        ctx.shapes = [tensor.shape for tensor in inputs]
        collectives.all_to_all(list(outputs), [tensor.contiguous() for tensor in inputs], group)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        outputs = [grads[0].new_empty(shape) for shape in ctx.shapes]
        return None, None, *_AlltoAll.apply(ctx.group, outputs, *grads)


class _AlltoAllSingle(Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: Any,
        output: Any,
        output_sizes: Sequence[int] | None,
        input_sizes: Sequence[int] | None,
        tensor: Any,
    ) -> Any:
        ctx.group, ctx.shape = group, tensor.shape
        ctx.output_sizes, ctx.input_sizes = output_sizes, input_sizes
        collectives.all_to_all_single(output, tensor, output_sizes, input_sizes, group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        given = grad.new_empty(ctx.shape)
        back = _AlltoAllSingle.apply(ctx.group, given, ctx.input_sizes, ctx.output_sizes, grad.contiguous())
        return None, None, None, None, back


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, op: Any, group: Any, tensor: Any) -> Any:
        ctx.op, ctx.group = op, group
        total = tensor.clone(memory_format=contiguous_format)
        collectives.all_reduce(total, op, group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, _AllReduce.apply(ctx.op, ctx.group, grad)
