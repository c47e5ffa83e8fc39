"""Indexing: `x[...]`, `x[...] = y`, and the functions that read and write at positions in index tensors.

# Note [How an index is read]
As in PyTorch: ints, slices, None, Ellipsis and bools make a view, one after the other. Index tensors (lists, ranges and
NumPy arrays become tensors) are collected with their dimension and passed to one kernel. A mask becomes as many index
tensors as it has dimensions; the host waits for their length. The host also waits for an int in a 0-dim CUDA tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import index as index_of
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU
from flambeau.core.errors import type_name
from flambeau.core.layout import broadcast_shapes, may_self_overlap, wrap_dim
from flambeau.core.meta import Meta
from flambeau.ops import view as records
from flambeau.ops.copy import checked_scalar
from flambeau.ops.index import indexing as ops
from flambeau.ops.index import masks, scattering
from flambeau.ops.index_common import INDEX_TYPES
from flambeau.ops.op import Op
from flambeau.tensor import autocast, dispatch, interception, layout_functions
from flambeau.tensor.arguments.extents import require_data
from flambeau.tensor.arguments.integers import LIMIT, as_int
from flambeau.tensor.arguments.public import alias, both, functions, method, method_and_function
from flambeau.tensor.autograd.autograd_meta import run
from flambeau.tensor.call import call, call_into, refuse_overlap
from flambeau.tensor.exchange import data
from flambeau.tensor.functions.views import tensors_of, unbind, unsqueeze
from flambeau.tensor.out_argument import require_dtype
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

_MASKS = (dtypes.bool_, dtypes.uint8)
_NUMBERS = (bool, int, float, complex)
_Found = list[tuple[int, Tensor]]


# -- x[...] --------------------------------------------------------------------------------------------


def get(self: Tensor, index: Any) -> Tensor:
    """Return a view for ints, slices, None and Ellipsis; a new tensor for tensors, lists or masks.

    Values of an index tensor are checked when they are read: immediately on the CPU, later on a CUDA device.

    Raises:
        IndexError: For too many indices, an index out of range, a wrong type, or a mask of another shape.
    """
    if index.__class__ is int and self.meta.ndim:
        return _select(self, 0, index)
    parts = index if index.__class__ is tuple else (index,)
    if parts and len(parts) <= self.meta.ndim and _PLAIN.issuperset(map(type, parts)):
        return _view_basic(self, parts)
    if index.__class__ is Tensor and _is_places(index.meta, self.meta):
        return call(ops.index, (self, index), (_FIRST,))
    view, found = _apply(self, index)
    if not found:
        return run(records.alias, self) if view is self else view
    if len(found) == 1 and _is_whole_mask(view, found[0][1]):
        return _select_by_mask(view, found[0][1], indexed=True)
    dims, indices = _expand_indices(view, found)
    result: Tensor = call(ops.index, (view, *indices), (dims,))
    return result


def put_at(self: Tensor, index: Any, value: Any) -> None:
    """Write a number, or a tensor that is broadcast, to the elements that an index selects.

    Raises:
        IndexError: If the index does not fit the tensor, as in `get`.
        TypeError: If the value is neither a tensor nor a number.
        RuntimeError: If shapes do not fit, or the dtypes differ and tensors index. Views convert, as in PyTorch.
    """
    if not isinstance(value, Tensor | bool | int | float | complex):
        if not isinstance(value, np.integer):
            raise TypeError(f"can't assign a {type_name(value)} to a {self.type()}")
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = as_int(value)
    if index is False:
        return
    view, found = _apply(self, None if index is True else index)  # both add a dimension; a view converts
    if not found:
        if isinstance(value, Tensor):
            if value.meta.shape != view.meta.shape:  # `x[:] = x[0]` is no copy from memory that it writes
                value = run(records.expand, _without_leading_ones(value), view.meta.shape)
            view.copy_(value)
        else:
            view.fill_(value)
        return
    mask = found[0][1]
    here = mask.meta.device is view.meta.device
    if here and len(found) == 1 and mask.meta.dtype is dtypes.bool_ and _is_scalar(value):
        _check_mask(view, found[0][0], mask)
        tail = view.meta.ndim - found[0][0] - mask.meta.ndim
        number = value.reshape(()) if isinstance(value, Tensor) else value
        masked_fill_(view, mask.reshape((*mask.meta.shape, *[1] * tail)), number)
        return
    dims, indices = _expand_indices(view, found)
    if isinstance(value, Tensor):
        operand: Any = _without_leading_ones(value)
    else:
        operand = checked_scalar(value, self.meta.dtype)
    _in_place(ops.index_put, view, (operand, *indices), (dims, False))


alias("__getitem__", get, as_function=False)
alias("__setitem__", put_at, as_function=False)


_FIRST = (0,)
_PLAIN = frozenset((int, slice))


def _view_basic(t: Tensor, parts: Sequence[Any]) -> Tensor:
    """Return the view of an index of ints and slices, which is the common case."""
    view, dim = t, 0
    for part in parts:
        if part.__class__ is int:
            view = _select(view, dim, part)
        else:
            view, dim = _slice(view, dim, part), dim + 1
    return run(records.alias, t) if view is t else view


def _is_places(index: Meta, x: Meta) -> bool:
    """Return True for an index tensor of integers along the first dimension, which needs no further analysis."""
    return index.dtype is dtypes.int64 and index.ndim > 0 < x.ndim and index.device is x.device


def _is_whole_mask(t: Tensor, index: Tensor) -> bool:
    """Return True if an index is a boolean mask of the whole tensor. Raises like `get`."""
    a, b = t.meta, index.meta
    if b.dtype is not dtypes.bool_ or b.ndim != a.ndim or not b.ndim or b.device is not a.device:
        return False
    _check_mask(t, 0, index)
    return True


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Tensor) or (value.meta.numel == 1 and value.meta.device is CPU)


def _without_leading_ones(value: Tensor) -> Tensor:
    shape = value.meta.shape
    ones = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return run(records.view, value, shape[ones:]) if ones else value


def _apply(t: Tensor, index: Any) -> tuple[Tensor, _Found]:
    """Return the view of an index's basic parts, and the index tensors with their dimensions in that view."""
    parts = _parts(index)
    taken = sum(map(_dimensions, parts))
    if t.meta.ndim == 0 and any(isinstance(p, int) and not isinstance(p, bool) for p in parts):
        raise IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to "
            "convert a 0-dim tensor to a number"
        )
    if taken > t.meta.ndim:
        raise IndexError(f"too many indices for tensor of dimension {t.meta.ndim}")
    found: _Found = []
    dim, left, view = 0, t.meta.ndim - taken, t
    for part in parts:
        if _dimensions(part) and dim + _dimensions(part) > view.meta.ndim:  # behind a second ellipsis
            raise IndexError(f"too many indices for tensor of dimension {view.meta.ndim} (got {dim + 1})")
        if part is Ellipsis:
            dim += left
        elif part is None:
            view, dim = unsqueeze(view, dim), dim + 1
        elif isinstance(part, bool):
            view, dim = _add_bool(view, dim, part, found), dim + 1
        elif isinstance(part, slice):
            view, dim = _slice(view, dim, part), dim + 1
        elif isinstance(part, Tensor):
            view, dim = _add_tensor(view, dim, part, found)
        else:
            view = _select(view, dim, as_int(part))
    return view, found


def _parts(index: Any) -> list[Any]:
    """Return the index as a list, its sequences and arrays as tensors."""
    if isinstance(index, tuple):
        listed: Sequence[Any] = index
    elif isinstance(index, list) and _means_tuple(index):
        warn_program(
            "Using a non-tuple sequence for multidimensional indexing is deprecated and will be changed in "
            "pytorch 2.9; use x[tuple(seq)] instead of x[seq]. In pytorch 2.9 this will be interpreted as "
            "tensor index, x[torch.tensor(seq)], which will result either in an error or a different result",
            UserWarning,
        )
        listed = index
    else:
        listed = (index,)
    return [_part(x) for x in listed]


def _means_tuple(index: list[Any]) -> bool:
    """Return True if PyTorch reads a list as a tuple: a short one that contains more than ints."""
    return len(index) < 32 and any(
        x is None or x is Ellipsis or isinstance(x, Tensor | slice | list | tuple | range | np.ndarray)
        for x in index
    )


def _part(x: Any) -> Any:
    if x is None or x is Ellipsis or isinstance(x, bool | int | slice):
        return x
    if isinstance(x, Tensor):
        if x.meta.dtype not in (*INDEX_TYPES, *_MASKS) and not (
            x.meta.ndim == 0 and x.meta.dtype.category == dtypes.INTEGRAL
        ):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        return x
    if isinstance(x, np.integer):
        return int(x)
    if isinstance(x, Sequence | np.ndarray):
        made = data.tensor(list(x) if isinstance(x, range | tuple) else x)
        return made if made.meta.dtype in _MASKS else made.to(dtype=dtypes.int64)
    if hasattr(x, "__index__"):
        return as_int(x)
    raise IndexError(
        "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
        f"(got {type(x).__name__})"
    )


def _dimensions(part: Any) -> int:
    """Return the number of dimensions that a part of an index consumes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if isinstance(part, Tensor) and part.meta.dtype in _MASKS:
        return part.meta.ndim
    return 1


def _select(t: Tensor, dim: int, index: int) -> Tensor:
    size = t.meta.shape[dim]
    if not -size <= index < size:
        as_int(index)  # refuses ints of more bits otherwise
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    return run(records.select, t, dim, index)


def _slice(t: Tensor, dim: int, part: slice) -> Tensor:
    step = 1 if part.step is None else _read_bound(part.step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    if step < 0:
        raise ValueError("step must be greater than zero")
    if part.start is None and part.stop is None and step == 1 and t.meta.ndim:
        return t
    start = 0 if part.start is None else _read_bound(part.start)
    stop = sys.maxsize if part.stop is None else _read_bound(part.stop)
    return run(records.slice_, t, dim, start, stop, step)


def _read_bound(value: Any) -> int:
    """Return a part of a slice as an int. As in Python, one of more than 63 bits counts as the nearest of 63 bits."""
    return min(max(index_of(value), -LIMIT), LIMIT - 1)


def _add_bool(t: Tensor, dim: int, value: bool, found: _Found) -> Tensor:
    """Add a bool index: True adds a dimension of size 1, False one of size 0."""
    index = data.tensor([0] if value else [], dtype=dtypes.int64)
    found.append((dim, index))
    return unsqueeze(t, dim)


def _add_tensor(t: Tensor, dim: int, index: Tensor, found: _Found) -> tuple[Tensor, int]:
    if index.meta.ndim:
        found.append((dim, index))
        return t, dim + _dimensions(index)
    if index.meta.dtype in _MASKS:
        return _add_bool(t, dim, bool(index.item()), found), dim + 1
    return _select(t, dim, int(index.item())), dim


def _expand_indices(t: Tensor, found: _Found) -> tuple[tuple[int, ...], list[Tensor]]:
    """Return the indexed dimensions and their index tensors on the device of `t`; masks become their indices."""
    dims, indices = [], []
    where = t.meta.device
    for dim, index in found:
        if index.meta.device is not where and index.meta.device is not CPU:
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({where})"
            )
        if index.meta.dtype not in _MASKS:
            dims.append(dim)
            indices.append(index)
            continue
        if index.meta.dtype is dtypes.uint8:
            warn_program(
                "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.",
                UserWarning,
            )
        _check_mask(t, dim, index)
        dims += range(dim, dim + index.meta.ndim)
        indices += unbind(_nonzero(index), 1)
    return tuple(dims), [i if i.meta.device is where else i.to(where) for i in indices]


def _check_mask(t: Tensor, dim: int, mask: Tensor) -> None:
    for i, n in enumerate(mask.meta.shape):
        if dim + i >= t.meta.ndim or t.meta.shape[dim + i] != n:
            raise IndexError(
                f"The shape of the mask {list(mask.meta.shape)} at index {i} does not match the shape of the "
                f"indexed tensor {list(t.meta.shape)} at index {dim + i}"
            )


# -- nonzero and masks ---------------------------------------------------------------------------------


def _nonzero(t: Tensor) -> Tensor:
    if interception.count and dispatch.is_shown((t,)):
        return dispatch.show("nonzero", t)
    require_data(t, "nonzero")
    count, before = call(masks.nonzero_count, (t,))
    result: Tensor = call(masks.nonzero, (t, before), (int(count.item()),))
    return result


@both
@signatures("nonzero(input: Tensor, *, as_tuple: bool=)")
def nonzero(input: Tensor, *, out: Tensor | None = None, as_tuple: bool = False) -> Any:
    """Return the indices of elements that are not zero: (count, ndim), or one vector per dimension with `as_tuple`.

    The host waits for the device, since the shape depends on the data.
    """
    if as_tuple:
        return unbind(_nonzero(input if input.meta.ndim else unsqueeze(input, 0)), 1)
    if out is None:
        return _nonzero(input)
    if out.dtype is not dtypes.int64:
        raise RuntimeError(
            f"nonzero: Expected out tensor to have scalar type Long but got scalar type{out.dtype.torch_name}"
        )
    require_data(input, "nonzero")
    count, before = call(masks.nonzero_count, (input,))
    return call_into(masks.nonzero, (out,), (input, before), (int(count.item()),), resize=True)


@both
def argwhere(input: Tensor) -> Tensor:
    """Return `nonzero(input)`."""
    return _nonzero(input)


@both
def masked_select(input: Tensor, mask: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the elements where the (broadcast) mask is True, as a vector. Synchronizes with the device."""
    if mask.meta.dtype is not dtypes.bool_:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    if interception.count and out is None and dispatch.is_shown((input, mask)):
        return dispatch.compose("masked_select", input, mask)
    shape = _common_shape(input, mask)
    x, where = run(records.expand, input, shape), run(records.expand, mask, shape)
    return _select_by_mask(x, where, out)


def _select_by_mask(x: Tensor, mask: Tensor, out: Tensor | None = None, indexed: bool = False) -> Tensor:
    """Return the elements that a mask of x's shape chooses."""
    if interception.count and out is None and dispatch.is_shown((x, mask)):
        return dispatch.compose("index_by_mask", x, mask)
    require_data(mask, "masked_select")
    count, before = call(masks.nonzero_count, (mask,))
    return _into(masks.masked_select, out, (x, mask, before), (int(count.item()), indexed))


def _common_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    return broadcast_shapes([a.meta.shape, b.meta.shape])


def _into(
    op: Op, out: Tensor | None, args: Sequence[Any], params: tuple[Any, ...] = (), over_input: bool = True
) -> Tensor:
    """Run an operator, with the result in `out` if it is not None. With `over_input`, `out` may be the input itself."""
    if out is not None:
        require_dtype(args[0].meta.dtype, out)
        for t in args[1:] if over_input and out is args[0] else args:
            if isinstance(t, Tensor) and t.memory is out.memory:
                refuse_overlap(out, t)
    result: Tensor = (
        call(op, args, params) if out is None else call_into(op, (out,), args, params, resize=True)
    )
    return result


def _in_place(op: Op, self: Tensor, rest: Sequence[Any], params: tuple[Any, ...] = ()) -> Tensor:
    """Run an indexed write in place. Raises RuntimeError if source and target share memory."""
    for t in rest:
        if isinstance(t, Tensor) and t.memory is self.memory:
            refuse_overlap(self, t)
    result: Tensor = call_into(op, (self,), (self, *rest), params)
    return result


def _scalar(value: Any, like: Tensor, name: str) -> Any:
    """Return a value operand: a number that fits the dtype, or the number of a 0-dim tensor, read before any write."""
    if not isinstance(value, Tensor):
        return checked_scalar(value, like.meta.dtype)
    if value.meta.ndim:
        raise RuntimeError(
            f"{name} only supports a 0-dimensional value tensor, but got tensor with {value.meta.ndim} "
            "dimension(s)."
        )
    if value.memory is like.memory:
        value = value.clone()
    return value if value.meta.dtype is like.meta.dtype else value.to(dtype=like.meta.dtype)


def _repeated_dims(t: Tensor) -> list[int]:
    return [
        dim
        for dim, (size, stride) in enumerate(zip(t.meta.shape, t.meta.strides, strict=True))
        if size > 1 and not stride
    ]


def without_repeats(t: Tensor) -> Tensor:
    """Return the part of an expanded tensor that shows each element once."""
    for dim in _repeated_dims(t):
        t = t.narrow(dim, 0, 1)
    return t


def _warn_of_repeats(name: str, example: str) -> None:
    warn_program(
        f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this "
        f"operation. This also applies to advanced indexing e.g. {example}",
        UserWarning,
    )


@both
@signatures("masked_fill(input: Tensor, mask: Tensor, value: Tensor | Number)")
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Return `value` where the (broadcast) mask is True, elsewhere the tensor's elements."""
    result: Tensor = call(masks.masked_fill, (input, mask, _scalar(value, input, "masked_fill_")))
    return result


@method
@signatures("Tensor.masked_fill_(mask: Tensor, value: Tensor | Number)")
def masked_fill_(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    if may_self_overlap(self.meta.shape, self.meta.strides) and mask.dtype is dtypes.bool_:
        _warn_of_repeats("masked_fill_", "tensor[mask] = scalar")
        shown = mask.expand(self.meta.shape)
        for dim in _repeated_dims(self):
            shown = shown.any(dim, keepdim=True)
        masked_fill_(without_repeats(self), shown, value)
        return self
    return call_into(masks.masked_fill, (self,), (self, mask, _scalar(value, self, "masked_fill_")))


@both
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return the elements of `source`, in order, where the (broadcast) mask is True."""
    result: Tensor = call(masks.masked_scatter, (input, mask, source))
    return result


@method
def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    return call_into(masks.masked_scatter, (self,), (self, mask, source))


# -- along one dimension -------------------------------------------------------------------------------


@both
def index_select(input: Tensor, dim: int, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the slices of a dimension that a vector of indices names."""
    return _into(ops.index_select, out, (input, index), (dim,), over_input=False)


@both
@signatures("index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number=)")
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1, out: Tensor | None = None
) -> Tensor:
    """Add `alpha` times the slices of `source` at indices of a dimension; repeated indices add up."""
    alpha = checked_scalar(alpha, input.meta.dtype)
    return _into(ops.index_add, out, (input, index, source, alpha), (dim,))


@method
@signatures("Tensor.index_add_(dim: int, index: Tensor, source: Tensor, *, alpha: Number=)")
def index_add_(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    return _in_place(ops.index_add, self, (index, source, checked_scalar(alpha, self.meta.dtype)), (dim,))


@both
def index_copy(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Copy the slices of `source` to indices of a dimension. For repeated indices the last slice is kept."""
    return _into(ops.index_copy, out, (input, index, source), (dim,))


@method
def index_copy_(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _in_place(ops.index_copy, self, (index, source), (dim,))


@both
@signatures("index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number)")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Write `value` at indices of a dimension."""
    result: Tensor = call(ops.index_fill, (input, index, _scalar(value, input, "index_fill_")), (dim,))
    return result


@method
@signatures("Tensor.index_fill_(dim: int, index: Tensor, value: Tensor | Number)")
def index_fill_(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    if may_self_overlap(self.meta.shape, self.meta.strides):
        _warn_of_repeats("index_fill_", "tensor[mask] = scalar")
        index_select(self.detach(), dim, index)  # refuses indices out of range
        is_repeated = dim % self.meta.ndim in _repeated_dims(self)
        index_fill_(without_repeats(self), dim, index.flatten()[:1] * 0 if is_repeated else index, value)
        return self
    return _in_place(ops.index_fill, self, (index, _scalar(value, self, "index_fill_")), (dim,))


@both
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Reduce the slices of `source` ("prod", "mean", "amax", "amin") into indices of a dimension."""
    return _into(ops.index_reduce, out, (input, index, source), (dim, _index_how(reduce), include_self))


@method
def index_reduce_(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _in_place(ops.index_reduce, self, (index, source), (dim, _index_how(reduce), include_self))


def _index_how(reduce: str) -> str:
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either prod, mean, amax or amin, got {reduce}.")
    return reduce


@method_and_function
def index_put_(self: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
    """Run `self[indices] = values` in place; with `accumulate`, `+=`, where repeated indices add up."""
    found, dim = [], 0
    for index in tensors_of(indices, "index_put_"):
        found.append((dim, index))
        dim += _dimensions(index)
    if not found:
        raise RuntimeError("index_put_(): expected at least one index")
    if dim > self.meta.ndim:
        raise IndexError(f"too many indices for tensor of dimension {self.meta.ndim} (got {dim})")
    dims, places = _expand_indices(self, found)
    return _in_place(ops.index_put, self, (values, *places), (dims, bool(accumulate)))


@both
def index_put(input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
    """Run `index_put_` on a copy."""
    if autocast.threads:
        input, values = autocast.cast(ops.index_put.autocast, input, values)
    return index_put_(input.clone(), indices, values, accumulate)


# -- element by element --------------------------------------------------------------------------------


def _grid_index(index: Tensor) -> Tensor:
    """Check an index of gather and scatter. As in PyTorch, an empty index may have any dtype."""
    return index if index.meta.numel else index.to(dtypes.int64)


@both
def gather(
    input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, out: Tensor | None = None
) -> Tensor:
    """Return the elements at the positions in `index` along `dim`; positions along other dimensions are those of
    `index`.

    With `sparse_grad` the gradient of `input` is a sparse tensor of the selected elements.
    """
    op = layout_functions.find("sparse_gather") if sparse_grad else scattering.gather
    return _into(op, out, (input, _grid_index(index)), (dim,), over_input=False)


@both
def take_along_dim(
    input: Tensor, indices: Tensor, dim: int | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return `gather` with broadcasting, and indices modulo the size of `dim`. Without `dim`, flatten the input."""
    if dim is None:
        flat = input.reshape(-1)
        return gather(flat, 0, indices.reshape(-1), out=out)
    if indices.dtype is not dtypes.int64:
        raise RuntimeError(
            f"torch.take_along_dim(): dtype of indices should be Long but got {indices.dtype.torch_name}"
        )
    if input.meta.ndim != indices.meta.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of dimensions, but got "
            f"{input.meta.ndim} dimensions for input, and {indices.meta.ndim} dimensions for indices"
        )
    d = wrap_dim(dim, input.meta.ndim)
    places, own = list(indices.meta.shape), list(input.meta.shape)
    places[d], own[d] = 1, 1
    shape = list(broadcast_shapes([places, own]))
    wide = run(records.expand, input, (*shape[:d], input.meta.shape[d], *shape[d + 1 :]))
    narrow = run(records.expand, indices, (*shape[:d], indices.meta.shape[d], *shape[d + 1 :]))
    return gather(wide, d, functions["remainder"](narrow, max(input.meta.shape[d], 1)), out=out)


@both
def take(input: Tensor, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the elements at the positions `index` in the flattened tensor, in the shape of `index`."""
    return _into(scattering.take, out, (input, index), over_input=False)


@both
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return the elements of `source` at places of the flattened tensor."""
    result: Tensor = call(scattering.put, (input, index, source), (bool(accumulate),))
    return result


@method
def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return _in_place(scattering.put, self, (index, source), (bool(accumulate),))


def _scatter_args(self: Tensor, index: Tensor, src: Any, value: Any, reduce: str | None) -> tuple[Any, str]:
    if reduce not in (None, "add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    source = src if src is not None else value
    if isinstance(source, Tensor):
        if reduce is not None:
            warn_program(
                "The reduce argument of torch.scatter with Tensor src is deprecated and will be removed in a "
                "future PyTorch release. Use torch.scatter_reduce instead for more reduction options.",
                UserWarning,
            )
        return source, reduce or ""
    if isinstance(source, np.generic):
        source = source.item()
    if not isinstance(source, _NUMBERS):
        raise TypeError(
            f"scatter(): argument 'src' (position 3) must be Tensor or Number, not {type(source).__name__}"
        )
    number = checked_scalar(source, self.meta.dtype) if index.meta.numel else 0  # which nothing converts
    return number, reduce or ""


@both
@signatures("""
scatter(input: Tensor, dim: int, index: Tensor, src: Tensor)
scatter(input: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str)
scatter(input: Tensor, dim: int, index: Tensor, value: Number)
scatter(input: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str)
""")
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Write `src`, or one value, to the elements that `index` selects along `dim`; the last of repeats wins."""
    source, how = _scatter_args(input, index, src, value, reduce)
    op = scattering.scatter_reducing if how else scattering.scatter
    return _into(op, out, (input, _grid_index(index), source), (dim, how, True, "scatter"))


@method
@signatures("""
Tensor.scatter_(dim: int, index: Tensor, src: Tensor)
Tensor.scatter_(dim: int, index: Tensor, src: Tensor, *, reduce: str)
Tensor.scatter_(dim: int, index: Tensor, value: Number)
Tensor.scatter_(dim: int, index: Tensor, value: Number, *, reduce: str)
""")
def scatter_(
    self: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    source, how = _scatter_args(self, index, src, value, reduce)
    op = scattering.scatter_reducing if how else scattering.scatter
    return _in_place(op, self, (_grid_index(index), source), (dim, how, True, "scatter"))


@both
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Add `src` to the elements that `index` selects along `dim`; repeated elements add up."""
    if autocast.threads and out is None:
        input, src = autocast.cast(scattering.scatter_add.autocast, input, src)
    return _into(scattering.scatter_add, out, (input, _grid_index(index), src), (dim, "sum", True, "scatter"))


@method
def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _in_place(scattering.scatter_add, self, (_grid_index(index), src), (dim, "sum", True, "scatter"))


def _reduction(reduce: str) -> str:
    reduce = {"max": "amax", "min": "amin"}.get(reduce, reduce)  # PyTorch accepts these names too
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    return reduce


@both
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Reduce `src` (sum, prod, mean, amax, amin) into the elements that `index` selects along `dim`."""
    params = (dim, _reduction(reduce), include_self, "scatter")
    return _into(scattering.scatter_reduce, out, (input, _grid_index(index), src), params)


@method
def scatter_reduce_(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    params = (dim, _reduction(reduce), include_self, "scatter")
    return _in_place(scattering.scatter_reduce, self, (_grid_index(index), src), params)
