"""Views, selections and concatenation of COO tensors: new indices, the same values. Compressed ones: transposition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.layout import wrap_dim
from flambeau.ops import view as views
from flambeau.ops.index.indexing import index_select
from flambeau.ops.shape import joining
from flambeau.tape.mode import recording
from flambeau.tensor import layout_functions
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.sparse.elementwise import with_values
from flambeau.tensor.sparse.primitives import (
    build,
    build_compressed,
    coalesce,
    indices_of,
    record,
    to_coo,
    values_of,
)
from flambeau.tensor.sparse.sparse_storage import is_compressed, is_coo, make_sparse, meta_of, storage_of
from flambeau.tensor.tensor import Tensor


def _record_view(name: str, back: Callable[..., Any], define: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a view that computes `define(t, *params)` without recording; `back(grad, metas, params)` is its
    derivative.
    """
    known = record(name, back)

    def run(t: Tensor, *params: Any) -> Tensor:
        with recording(False):
            made = define(t, *params)
        record_result(known, params, (t,), (made,))
        return made

    return run


def _require_coo(name: str, t: Tensor) -> None:
    if not is_coo(t):
        raise layout_functions.not_implemented(name, (t,))


def _put_elsewhere(
    t: Tensor, indices: Tensor, shape: Sequence[int], values: Any = None, coalesced: bool = False
) -> Tensor:
    """Return a COO tensor with other indices and shape, and the same or other values."""
    return build(indices, storage_of(t).values if values is None else values, shape, coalesced)


# -- views ------------------------------------------------------------------------------------------------------


def _alias(t: Tensor) -> Tensor:
    return make_sparse(meta_of(t), storage_of(t))


def _permute(t: Tensor, dims: Sequence[int]) -> Tensor:
    meta = meta_of(t)
    if len(dims) != meta.ndim:
        raise RuntimeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {meta.ndim} is not equal to len(dims) = {len(dims)}"
        )
    order = [wrap_dim(d, meta.ndim) for d in dims]
    if sorted(order) != list(range(meta.ndim)):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    if order == list(range(meta.ndim)):
        return _alias(t)
    shape = [meta.shape[d] for d in order]
    if is_compressed(t):
        if meta.ndim != 2:
            raise layout_functions.not_implemented("permute", (t,))
        storage = storage_of(t)
        layout = "sparse_csc" if meta.layout == "sparse_csr" else "sparse_csr"
        return build_compressed(layout, storage.compressed, storage.plain, storage.values, shape)
    count = meta.sparse_dim
    if sorted(order[:count]) != list(range(count)):
        raise RuntimeError("transpose: cannot transpose sparse and dense dimensions")
    places = torch["tensor"](order[:count], device=meta.device)
    values = storage_of(t).values.permute(0, *[d - count + 1 for d in order[count:]])
    moved = order[:count] != list(range(count))
    return _put_elsewhere(
        t, storage_of(t).indices.index_select(0, places), shape, values, storage_of(t).coalesced and not moved
    )


def _swap(t: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(t.meta.ndim))
    a, b = wrap_dim(dim0, len(order)), wrap_dim(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return _permute(t, order)


def _permuted_back(grad: Any, metas: Any, params: Any) -> Any:
    order = [wrap_dim(d, metas[0].ndim) for d in params[0]]
    return grad.permute([order.index(d) for d in range(len(order))])


layout_functions.views[views.alias] = _record_view("alias", lambda grad: grad, _alias)
layout_functions.views[views.permute] = _record_view("permute", _permuted_back, _permute)
layout_functions.views[views.transpose] = _record_view(
    "transpose", lambda grad, params: grad.transpose(*params), _swap
)
layout_functions.views[views.t] = _record_view(
    "t", lambda grad: grad.t(), lambda t: _swap(t, 0, t.meta.ndim - 1)
)


def _unsqueeze(t: Tensor, dim: int) -> Tensor:
    _require_coo("unsqueeze", t)
    meta, storage = meta_of(t), storage_of(t)
    d = wrap_dim(dim, meta.ndim + 1)
    shape = (*meta.shape[:d], 1, *meta.shape[d:])
    if d > meta.sparse_dim:
        values = storage.values.unsqueeze(d - meta.sparse_dim + 1)
        return build(storage.indices, values, shape, storage.coalesced)
    rows = storage.indices
    zeros = rows.new_zeros((1, rows.meta.shape[1]))
    return _put_elsewhere(t, torch["cat"]([rows[:d], zeros, rows[d:]]), shape, coalesced=storage.coalesced)


def _unsqueezed_back(grad: Any, metas: Any, params: Any) -> Any:
    d = wrap_dim(params[0], metas[0].ndim + 1)
    return grad.select(d, 0)


layout_functions.views[views.unsqueeze] = _record_view("unsqueeze", _unsqueezed_back, _unsqueeze)


def _select(t: Tensor, dim: int, index: int) -> Tensor:
    if is_compressed(t):
        t = to_coo(t)
    meta, storage = meta_of(t), storage_of(t)
    if not meta.ndim:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, meta.ndim)
    size = meta.shape[d]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(meta.shape)} at dimension {dim}"
        )
    index = index + size if index < 0 else index
    shape = (*meta.shape[:d], *meta.shape[d + 1 :])
    if d >= meta.sparse_dim:
        values = storage.values.select(d - meta.sparse_dim + 1, index)
        return build(storage.indices, values, shape, storage.coalesced)
    kept = (storage.indices[d] == index).nonzero().view(-1)
    values = storage.values.index_select(0, kept)
    if meta.sparse_dim == 1:
        return values.sum(0, dtype=meta.dtype) if meta.dtype is not dtypes.bool_ else values.any(0)
    indices = torch["cat"]([storage.indices[:d], storage.indices[d + 1 :]]).index_select(1, kept)
    return build(indices, values, shape, storage.coalesced)


def _selected_back(grad: Any, metas: Any, params: Any) -> Any:
    meta, (dim, index) = metas[0], params
    d = wrap_dim(dim, meta.ndim)
    if not grad.meta.sparse:
        whole = grad.new_zeros(meta.shape)
        whole.select(d, index).copy_(grad)
        return whole
    return place_along(to_coo(grad), d, index % meta.shape[d], meta.shape)


def place_along(t: Tensor, dim: int, index: int, shape: Sequence[int]) -> Tensor:
    """Return a COO tensor of `shape` that has `t` at one index of a new sparse dimension and zeros elsewhere,
    recorded.
    """
    with recording(False):
        rows = storage_of(t).indices
        new = rows.new_full((1, rows.meta.shape[1]), index)
        indices = torch["cat"]([rows[:dim], new, rows[dim:]])

    if dim > meta_of(t).sparse_dim:
        raise layout_functions.not_implemented("select_backward", (t,))
    t = coalesce(t)
    return build(indices, values_of(t), shape)


layout_functions.views[views.select] = _record_view("select", _selected_back, _select)


def _narrow(t: Tensor, dim: int, start: int, end: int, step: int) -> Tensor:
    """Return an alias of the tensor for the slice of a whole dimension; others are not implemented, as in PyTorch."""
    meta = meta_of(t)
    d = wrap_dim(dim, meta.ndim)
    size = meta.shape[d]
    start, end = (max(0, min(n + size if n < 0 else n, size)) for n in (start, end))
    if (start, end, step) == (0, size, 1):
        return _alias(t)
    raise layout_functions.not_implemented("as_strided", (t,))


layout_functions.views[views.slice_] = _record_view("slice", lambda grad: grad, _narrow)


def narrow_copy(t: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return indices `start` to `start + length` of a dimension of a COO tensor, unrecorded."""
    meta, storage = meta_of(t), storage_of(t)
    d = wrap_dim(dim, meta.ndim)
    shape = (*meta.shape[:d], length, *meta.shape[d + 1 :])
    if d >= meta.sparse_dim:
        values = storage.values.narrow(d - meta.sparse_dim + 1, start, length).clone()
        return build(storage.indices, values, shape, storage.coalesced)
    row = storage.indices[d]
    kept = ((row >= start) & (row < start + length)).nonzero().view(-1)
    indices = storage.indices.index_select(1, kept)
    indices[d] -= start
    return build(indices, storage.values.index_select(0, kept), shape, storage.coalesced)


layout_functions.views[views.real] = _record_view(
    "real", lambda grad, metas: grad.to(metas[0].dtype), lambda t: with_values(t, storage_of(t).values.real)
)
layout_functions.views[views.imag] = _record_view(
    "imag",
    lambda grad, metas: grad.to(metas[0].dtype) * 1j,
    lambda t: with_values(t, storage_of(t).values.imag),
)


# -- selections and joins ---------------------------------------------------------------------------------------


def _index_select(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    t, index = args
    if not isinstance(t, Tensor) or not is_coo(t) or index.meta.sparse:
        raise layout_functions.not_implemented("index_select", args)
    with recording(False):
        made = _take(t, params[0], index)
    record_result(_INDEX_SELECT, params, args, (made,))
    return made


def _take(t: Tensor, dim: int, index: Tensor) -> Tensor:
    meta, storage = meta_of(t), storage_of(t)
    d, index = wrap_dim(dim, meta.ndim), index.reshape(-1).to(dtypes.int64)
    shape = (*meta.shape[:d], index.meta.shape[0], *meta.shape[d + 1 :])
    if d >= meta.sparse_dim:
        values = storage.values.index_select(d - meta.sparse_dim + 1, index)
        return build(storage.indices, values, shape, storage.coalesced)
    size = meta.shape[d]
    if index.meta.numel and (int(index.min()) < -size or int(index.max()) >= size):
        raise IndexError(
            f"index_select(): index contains {index.tolist()} that is out of range for tensor of size {size} at "
            f"dimension {d}"
        )
    order = torch["sort"](storage.indices[d], stable=True)[1]
    row = storage.indices[d].index_select(0, order)
    wanted = torch["remainder"](index, max(size, 1))
    begin = torch["searchsorted"](row, wanted)
    counts = torch["searchsorted"](row, wanted, right=True) - begin
    place = torch["repeat_interleave"](torch["arange"](counts.numel(), device=meta.device), counts)
    offset = torch["arange"](place.numel(), device=meta.device) - (counts.cumsum(0) - counts).index_select(
        0, place
    )
    picked = order.index_select(0, begin.index_select(0, place) + offset)
    indices = storage.indices.index_select(1, picked)
    indices[d] = place
    return build(indices, storage.values.index_select(0, picked), shape)


def _index_select_back(grad: Any, b: Any, metas: Any, params: Any) -> Any:
    meta, (dim,) = metas[0], params
    d = wrap_dim(dim, meta.ndim)
    if not grad.meta.sparse:
        return grad.new_zeros(meta.shape).index_add_(d, b.reshape(-1), grad)

    grad = coalesce(to_coo(grad))
    with recording(False):
        indices = indices_of(grad).clone()
        indices[d] = torch["remainder"](b.reshape(-1).to(dtypes.int64), max(meta.shape[d], 1)).index_select(
            0, indices[d]
        )
    return build(indices, values_of(grad), meta.shape)


_INDEX_SELECT = record("index_select", _index_select_back)
layout_functions.calls[index_select] = _index_select


def _cat(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    with recording(False):
        made = _join(args, params[0])
    record_result(_CAT, params, args, (made,))
    return made


def _join(tensors: Sequence[Tensor], dim: int) -> Tensor:
    for i, t in enumerate(tensors):
        if not t.meta.sparse:
            raise RuntimeError(f"Concatenating sparse tensors, but a dense tensor was found at position {i}.")
        _require_coo("cat", t)
    first = meta_of(tensors[0])
    d, offset = wrap_dim(dim, first.ndim), 0
    for i, t in enumerate(tensors):
        meta = meta_of(t)
        same = [n for at, n in enumerate(meta.shape) if at != d] == [
            n for at, n in enumerate(first.shape) if at != d
        ]
        if meta.ndim != first.ndim or not same:
            raise RuntimeError(
                f"All tensors must have the same shape: {list(first.shape)} (except in the concatenating dimension), "
                f"but found shape: {list(meta.shape)} at position {i}."
            )
        if meta.sparse_dim != first.sparse_dim:
            raise RuntimeError(
                "All tensors must have the same number of sparse and dense dimensions to concatenate, but "
                f"{first.sparse_dim} and {meta.sparse_dim} sparse dimensions were found"
            )
    shape = list(first.shape)
    shape[d] = sum(t.meta.shape[d] for t in tensors)
    kind = tensors[0].meta.dtype
    for t in tensors[1:]:
        kind = torch["promote_types"](kind, t.meta.dtype)
    rows, values = [], []
    for t in tensors:
        storage, size = storage_of(t), t.meta.shape[d]
        indices, held = storage.indices, storage.values.to(kind)
        if d < first.sparse_dim:
            if offset:
                indices = indices.clone()
                indices[d] += offset
        else:
            at = d - first.sparse_dim + 1
            whole = held.new_zeros((held.meta.shape[0], *shape[first.sparse_dim :]))
            whole.narrow(at, offset, size).copy_(held)
            held = whole
        rows.append(indices)
        values.append(held)
        offset += size
    return build(torch["cat"](rows, 1), torch["cat"](values), shape)


def _cat_back(grad: Any, metas: Any, params: Any, needs: Any) -> list[Any]:
    d, offset, parts = wrap_dim(params[0], metas[0].ndim), 0, []
    for meta in metas:
        size = meta.shape[d]
        parts.append(grad_slice(grad, d, offset, size))
        offset += size
    return parts


def grad_slice(grad: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a slice of a gradient, strided or sparse, recorded."""
    if not grad.meta.sparse:
        return grad.narrow(dim, start, length)

    grad = coalesce(to_coo(grad))
    with recording(False):
        kept = narrow_copy(grad, dim, start, length)
    if dim >= meta_of(grad).sparse_dim:
        values = values_of(grad).narrow(dim - meta_of(grad).sparse_dim + 1, start, length)
        return build(storage_of(kept).indices, values, kept.meta.shape, coalesced=True)
    with recording(False):
        row = storage_of(grad).indices[dim]
        places = ((row >= start) & (row < start + length)).nonzero().view(-1)
    return build(
        storage_of(kept).indices, values_of(grad).index_select(0, places), kept.meta.shape, coalesced=True
    )


_CAT = record("cat", node="CatBackward0")
_CAT = _CAT.with_(derivative=type(_CAT.derivative)(whole=_cat_back, name="CatBackward0"))
layout_functions.calls[joining.cat] = _cat
