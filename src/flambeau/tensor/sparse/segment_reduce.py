"""`segment_reduce`: reductions of consecutive elements along a dimension."""

from __future__ import annotations

from typing import Any

from flambeau.core.layout import wrap_dim
from flambeau.ops.op import Derivative
from flambeau.tensor.arguments.arg_aliases import accepting
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.arguments.torch_function import announce
from flambeau.tensor.autograd.composites import Composite, record_composite
from flambeau.tensor.tensor import Tensor

_REDUCTIONS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "max": ("amax", float("-inf")),
               "min": ("amin", float("inf")), "prod": ("prod", 1.0)}  # fmt: skip


def _spread(per_segment: Any, index: Any, axis: int) -> Any:
    """Return the value of each element's segment; 0 for elements of no segment, whose index is the last."""
    return torch["cat"]((per_segment, torch["zeros_like"](per_segment.narrow(axis, 0, 1))), axis).gather(
        axis, index
    )


def _segment_reduce_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    """Return the gradient of the elements: shared by equal extremes, 0 for elements of no segment."""
    reduce, axis, index, lengths, initial = params
    if not out.shape[axis]:
        return torch["zeros_like"](a)
    if reduce == "mean":
        grad = grad / lengths.clamp_min(1)
    if reduce in ("sum", "mean"):
        return _spread(grad, index, axis)
    if reduce == "prod":
        return _spread(grad, index, axis) * _products_of_others(a, out, index, axis, initial)
    of_segment = _spread(out, index, axis)
    is_extreme = ((a == of_segment) | a.isnan()).to(a.dtype)
    ties = _reduce(is_extreme, "sum", 0.0, index, out.shape, axis)
    return _spread(grad / ties.clamp_min(1), index, axis) * is_extreme


def _products_of_others(a: Any, out: Any, index: Any, axis: int, initial: float) -> Any:
    """Return the product of the other elements of each element's segment, also of 0 and NaN."""
    where, is_odd = torch["where"], (a == 0) | a.isnan()
    product = _spread(out, index, axis)
    odd = _spread(_reduce(is_odd.to(a.dtype), "sum", 0.0, index, out.shape, axis), index, axis)
    rest = _spread(_reduce(where(is_odd, 1.0, a), "prod", initial, index, out.shape, axis), index, axis)
    return where(is_odd, where(odd == 1, rest, product), product / a)


_SEGMENT_REDUCE = Composite("segment_reduce", Derivative(_segment_reduce_back))


def _reduce(data: Any, reduce: str, start: float, index: Any, shape: Any, axis: int) -> Any:
    """Return the reduction of each segment, from `start`; elements of no segment have the last index."""
    target = list(shape)
    target[axis] += 1
    made = data.new_full(target, start).scatter_reduce(axis, index, data, reduce, include_self=True)
    return made.narrow(axis, 0, shape[axis])


def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Tensor:  # fmt: skip
    """Return the reduction of each segment of consecutive elements along a dimension.

    Args:
        data: The elements.
        reduce: "sum", "mean", "max", "min" or "prod".
        lengths: The numbers of elements of the segments, (*dimensions before `axis`, segments).
        offsets: In place of `lengths`, the first element of each segment and the end of the last.
        axis: The dimension, the last of `lengths`.
        unsafe: Do not check the lengths.
        initial: The value that each reduction begins with. Without it empty segments give the reduction's neutral
            element, means NaN.

    Raises:
        RuntimeError: If `reduce` is unknown, lengths do not fit, or both or none of `lengths` and `offsets` are given.
        NotImplementedError: If `data` is not of floating-point numbers.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}: segment_reduce takes sum, "
            "mean, max, min, prod"
        )
    axis = wrap_dim(axis, data.dim())
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    if (lengths is None) == (offsets is None):
        raise RuntimeError(
            "segment_reduce(): Either lengths or offsets must be defined."
            if lengths is None
            else "segment_reduce(): lengths and offsets exclude each other: give one of them."
        )
    given: Any = lengths if offsets is None else offsets
    name = "lengths" if offsets is None else "offsets"
    if axis != given.dim() - 1:
        raise RuntimeError(
            f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis}."
        )
    if given.shape[:-1] != data.shape[:axis]:
        raise RuntimeError(
            f"segment_reduce(): Expected the dimensions of {name} before the last to be those of data before axis, got "
            f"{tuple(given.shape[:-1])} and {tuple(data.shape[:axis])}."
        )
    if not data.dtype.is_floating_point:
        raise NotImplementedError(f"\"_segment_reduce_cpu\" not implemented for '{data.dtype.torch_name}'")
    starts, sizes = _boundaries(given, offsets is not None)
    if not unsafe:
        _check_sizes(sizes, starts, data.shape[axis], offsets is not None)
    return _run(data, reduce, starts, sizes, axis, initial)


def _boundaries(given: Any, are_offsets: bool) -> tuple[Any, Any]:
    """Return the offsets of all segments, with the end of the last one, and their lengths."""
    if are_offsets:
        return given, given.diff(dim=-1)
    ends = given.cumsum(-1)
    return torch["cat"]((torch["zeros_like"](ends.narrow(-1, 0, 1)), ends), -1), given


def _check_sizes(sizes: Any, starts: Any, length: int, are_offsets: bool) -> None:
    if bool((sizes < 0).any()):
        raise RuntimeError("lengths contains negative value!")
    if not are_offsets and bool((sizes.sum(-1) != length).any()):
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
            "!unsafe."
        )
    if are_offsets and bool(((starts < 0) | (starts > length)).any()):
        raise RuntimeError(f"segment_reduce(): Expected all offsets to be in [0, {length}].")


def _run(data: Any, reduce: str, starts: Any, sizes: Any, axis: int, initial: Any) -> Tensor:
    segments, length = sizes.shape[-1], data.shape[axis]
    shape = [*data.shape[:axis], segments, *data.shape[axis + 1 :]]
    places = torch["arange"](length, device=starts.device, dtype=starts.dtype).expand(
        *starts.shape[:-1], length
    )
    index = torch["searchsorted"](starts.contiguous(), places.contiguous(), right=True) - 1
    index = index.masked_fill((index < 0) | (index >= segments), segments).to(data.device)
    trailing = (1,) * (data.dim() - axis - 1)
    index = index.view(*index.shape, *trailing).expand(data.shape)
    counts = sizes.view(*sizes.shape, *trailing).to(data.device, data.dtype)
    kind, neutral = _REDUCTIONS[reduce]
    start = neutral if initial is None else initial

    def run() -> Any:
        made = _reduce(data, kind, start, index, shape, axis)
        if reduce != "mean":
            return made
        return made / (counts if initial is None else counts.clamp_min(1))

    return record_composite(_SEGMENT_REDUCE, (data,), run, (reduce, axis, index, counts, start))


segment_reduce = accepting(segment_reduce, "segment_reduce")
announce({"segment_reduce": segment_reduce})


announce({"segment_reduce": segment_reduce})
