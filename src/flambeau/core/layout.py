"""Shapes and strides: pure functions on tuples of ints. Strides count elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from numbers import Integral
from operator import index
from typing import Any

from flambeau.core import errors
from flambeau.core.dtype import INTEGRAL

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def numel(shape: Sequence[int]) -> int:
    return prod(shape)


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Return row-major strides. A dimension of size 0 counts as 1, as in PyTorch."""
    if len(shape) == 2:  # shapes of one and two dimensions are written out for speed
        step = shape[1]
        return (1 if step < 1 else step), 1
    if len(shape) == 1:
        return (1,)
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= 1 if size < 1 else size
    return tuple(reversed(strides))


def channels_last_strides(shape: Sequence[int]) -> Strides:
    """Return dense strides of (N, C, spatial ...) with the channels innermost; a dimension of size 0 counts as 1."""
    return _pack_strides(shape, (0, *range(2, len(shape)), 1), least=1)


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if a layout of 4 or 5 dimensions is channels last, with or without gaps: PyTorch's
    `suggest_memory_format`.

    If dimensions of one element leave it open (one channel, one position), their strides decide; those of a contiguous
    tensor mean no.
    """
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * shape[dim]
    return True


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True for a row-major layout without gaps. Strides of dimensions of size 1 do not matter."""
    if 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last that the layout reaches; 0 if it is empty."""
    reach = 1
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        reach += (size - 1) * stride
    return reach


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the layout reaches each element of its span exactly once, in any order of dimensions."""
    if is_contiguous(shape, strides):
        return True
    step = 1
    for stride, size in sorted((st, n) for n, st in zip(shape, strides, strict=True) if n > 1):
        if stride != step:
            return False
        step *= size
    return True


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """Return the strides of a copy that keeps the memory format, by the rule of `empty_like` and `clone`.

    A dense layout is kept as it is; any other is laid out densely in its own order of dimensions.
    """
    if is_dense(shape, strides):
        return tuple(strides)
    return _pack_strides(shape, memory_order(shape, strides))


def result_strides(shape: Sequence[int], *operands: Sequence[int], broadcast: bool = False) -> Strides:
    """Return strides of a new result of `shape` computed from operands with these strides, broadcast to `shape`.

    PyTorch's rule for pointwise operators and indexing: the operands' common order of dimensions. For each pair of
    dimensions, the first operand whose strides order them decides. `broadcast` means that shapes differed, in which
    case PyTorch does not take its fast path.
    """
    if not broadcast and all(is_contiguous(shape, strides) for strides in operands):
        return contiguous_strides(shape)
    first = operands[0]
    if (
        not broadcast
        and is_dense(shape, first)
        and all(tuple(strides) == tuple(first) for strides in operands)
    ):
        return tuple(first)
    order = memory_order(shape, *operands)
    if order == list(range(len(shape))):
        return contiguous_strides(shape)
    return _pack_strides(shape, order, least=0)  # PyTorch's iterator lets a size of 0 make strides 0


def _pack_strides(shape: Sequence[int], order: Sequence[int], least: int = 1) -> Strides:
    """Return dense strides with the dimensions in `order`, outermost first; a size counts as `least` at least."""
    out, step = [0] * len(shape), 1
    for dim in reversed(order):
        out[dim] = step
        step *= max(shape[dim], least)
    return tuple(out)


def memory_order(shape: Sequence[int], *operands: Sequence[int]) -> list[int]:
    """Return dimensions from outermost to innermost: larger strides first, then larger sizes, then the given order.

    A stride of 0 (an expanded dimension) does not order dimensions; then the next operand decides. The comparison is
    partial, so the order of the insertion sort matters: it runs from the innermost dimension outwards, as in PyTorch.
    """
    order = list(reversed(range(len(shape))))  # innermost first
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            sign = _compare(shape, operands, order[j], order[at])
            if sign < 0:
                break
            if sign > 0:
                order[j], order[at] = order[at], order[j]
                at = j
    return order[::-1]


def _compare(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """Return -1 if dimension `a` is inside `b`, 1 if it is outside, 0 if no operand orders them."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def broadcast_shapes(shapes: Iterable[Sequence[int]]) -> Shape:
    """Return the common shape of broadcasting. Raises RuntimeError with PyTorch's text if there is none."""
    result: list[int] = []
    for shape in shapes:
        shape = list(shape)
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        for i in range(1, len(shape) + 1):
            have, new = result[-i], shape[-i]
            if new == 1 or new == have:
                continue
            if have != 1:
                raise RuntimeError(errors.not_broadcastable(have, new, len(result) - i))
            result[-i] = new
    return tuple(result)


def expand_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> Strides:
    """Return the strides with which a tensor of `shape` is read in the (broadcast) shape `target`."""
    lead = len(target) - len(shape)
    return (0,) * lead + tuple(
        0 if size == 1 and want != 1 else stride
        for size, stride, want in zip(shape, strides, target[lead:], strict=True)
    )


def plain_dim(dim: Any) -> int:
    """Return a dimension as an int.

    Raises:
        TypeError: If `dim` is neither an integer of Python or NumPy nor an integer tensor without dimensions.
    """
    meta = getattr(dim, "meta", None)
    whole = (
        isinstance(dim, int | Integral) if meta is None else not meta.ndim and meta.dtype.category == INTEGRAL
    )
    if not whole or dim.__class__ is bool:
        raise TypeError(f"a dimension must be int, not {errors.type_name(dim)}")
    return index(dim)


def wrap_dim(dim: int, ndim: int) -> int:
    """Return `dim` counted from the front, where -1 is the last dimension; a 0-dim tensor accepts 0 and -1.

    Raises:
        IndexError: There is no such dimension.
        TypeError: `dim` is not an integer.
    """
    if dim.__class__ is not int:
        dim = plain_dim(dim)
    limit = max(ndim, 1)
    if not -limit <= dim < limit:
        raise IndexError(errors.dim_out_of_range(dim, limit))
    return dim + limit if dim < 0 else dim


def view_strides(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Strides | None:
    """Return the strides with which the same memory is a tensor of shape `new`, or None if that needs a copy."""
    if numel(shape) == 0:
        return contiguous_strides(new) if tuple(shape) != tuple(new) else tuple(strides)
    out = [0] * len(new)
    at = len(new) - 1
    chunk_stride = strides[-1] if strides else 1
    old_count = new_count = 1
    for dim in range(len(shape) - 1, -1, -1):
        old_count *= shape[dim]
        # A run of old dimensions ends where the next outer dimension does not continue it.
        if dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != old_count * chunk_stride):
            while at >= 0 and (new_count < old_count or new[at] == 1):
                out[at] = new_count * chunk_stride
                new_count *= new[at]
                at -= 1
            if new_count != old_count:
                return None
            if dim > 0:
                chunk_stride, old_count, new_count = strides[dim - 1], 1, 1
    if not shape:  # a 0-dim tensor is viewed with dimensions of size 1
        return (1,) * len(new)
    return tuple(out) if at == -1 else None


def may_self_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if two indices certainly refer to one element, as in an expanded dimension.

    PyTorch refuses to write to such a layout, and to no other (`unfold` may overlap and be written).
    """
    return 0 not in shape and any(n > 1 and st == 0 for n, st in zip(shape, strides, strict=True))


Dims = list[tuple[int, tuple[int, ...]]]
"""Outermost first: (size, stride of each operand in elements)."""


def merge_dims(shape: Sequence[int], strides: Sequence[Sequence[int]], ordered: bool = True) -> Dims:
    """Return the dimensions of operands of one shape, merged into as few as possible.

    With `ordered`, they are sorted by the first operand's strides, so that a kernel visits its memory in order.
    """
    dims: Dims = [(n, tuple([s[d] for s in strides])) for d, n in enumerate(shape) if n != 1]
    if ordered:
        dims.sort(key=lambda dim: dim[1], reverse=True)
    out: Dims = []
    for size, steps in dims:
        if out and all(a == b * size for a, b in zip(out[-1][1], steps, strict=True)):
            out[-1] = (out[-1][0] * size, steps)
        else:
            out.append((size, steps))
    return out
