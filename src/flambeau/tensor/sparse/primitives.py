"""Primitives of which all operators of sparse tensors are composed. Only they convert between layouts.

# Note [Gradients of sparse tensors]
The gradient of a sparse tensor is strided or sparse. `build` creates a tensor from values; `values_of` extracts them.
These, `coalesce`, `values_at` and `to_dense` are recorded, each with a derivative composed of the others. Functions
composed of them therefore have gradients of any order. Values of a tensor with duplicate indices have no gradient of
their own: functions that are not linear coalesce first. Linear ones are recorded as a whole, like the strided operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import BOOL
from flambeau.core.layout import contiguous_strides, numel
from flambeau.ops.op import Derivative
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.autograd.composites import Composite
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.sparse.sparse_storage import (
    detach_alias,
    is_compressed,
    is_coo,
    make_compressed,
    make_coo,
    meta_of,
    nnz_of,
    storage_of,
)
from flambeau.tensor.tensor import Tensor


def record(name: str, *formulas: Any, node: str | None = None) -> Composite:
    """Return the autograd description of a function of this package."""
    return Composite(name, Derivative(*formulas, name=node))


# -- COO tensors of indices and values ----------------------------------------------------------------------


def build(indices: Tensor, values: Tensor, shape: Sequence[int], coalesced: bool = False) -> Tensor:
    """Return a COO tensor over indices (sparse_dim, nnz) and values (nnz, *dense sizes), recorded for the values."""
    made = make_coo(indices, values, tuple(shape), coalesced)
    record_result(_BUILD, (), (values, indices), (made,))
    return made


_BUILD = record(
    "_sparse_coo_tensor_with_dims_and_tensors",
    lambda grad, b: values_at(grad, b),
    node="SparseCooTensorWithDimsAndTensorsBackward0",
)


def indices_of(t: Tensor) -> Any:
    """Return the indices of a sparse tensor as those of a COO tensor: (dimensions, nnz)."""
    return storage_of(t).indices if is_coo(t) else _compressed_places(t)


def coalesce(t: Tensor) -> Tensor:
    """Return a COO tensor with sorted, distinct indices: the tensor itself if it is coalesced. Repeated values are
    summed.
    """
    storage = storage_of(t)
    if storage.coalesced:
        return t
    indices, values, shape = storage.indices, storage.values, t.meta.shape
    sparse_dim = meta_of(t).sparse_dim
    with recording(False):
        made = make_coo(*_merge(indices, values, shape[:sparse_dim]), shape, coalesced=True)
    record_result(_COALESCE, (), (t,), (made,))
    return made


_COALESCE = record("coalesce", lambda grad: grad)


def _merge(indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return sorted, distinct indices, and the sums of the values at each."""
    ordered, order = torch["sort"](flatten(indices, shape), stable=True)
    indices, values = indices.index_select(1, order), values.index_select(0, order)
    is_first = torch["cat"]([ordered.new_ones((1,), dtype=dtypes.bool_), ordered[1:] != ordered[:-1]])
    heads = is_first.nonzero().view(-1)
    count = heads.meta.shape[0]
    if count == ordered.meta.shape[0]:
        return indices, values
    return indices.index_select(1, heads), add_rows(count, is_first.cumsum(0) - 1, values)


def add_rows(count: int, places: Any, values: Any) -> Any:
    """Return `count` rows, each the sum of the values whose index it is; "or" for booleans."""
    kind = values.meta.dtype
    if kind.category == BOOL:
        return add_rows(count, places, values.to(dtypes.int32)) != 0
    return values.new_zeros((count, *values.meta.shape[1:])).index_add_(0, places, values)


def flatten(indices: Any, shape: Sequence[int]) -> Any:
    """Return the position of each column of indices in a flattened tensor of `shape`."""
    flat = indices.new_zeros((indices.meta.shape[1],))
    for row, stride in enumerate(contiguous_strides(shape)):
        flat = flat + indices[row] * stride
    return flat


def values_of(t: Tensor) -> Tensor:
    """Return the values of a coalesced COO tensor, or of a compressed one: a recorded view."""
    made = detach_alias(storage_of(t).values)
    record_result(_VALUES, (), (t,), (made,))
    return made


def _put_values(grad: Tensor, a: Tensor) -> Tensor:
    storage = storage_of(a)
    if is_coo(a):
        return build(storage.indices, grad, a.meta.shape, storage.coalesced)
    return build_compressed(meta_of(a).layout, storage.compressed, storage.plain, grad, a.meta.shape)


_VALUES = record("values", _put_values)


# -- compressed tensors ---------------------------------------------------------------------------------------


def build_compressed(
    layout: str, compressed: Tensor, plain: Tensor, values: Tensor, shape: Sequence[int]
) -> Tensor:
    """Return a CSR or CSC tensor over its parts, recorded for the values."""
    made = make_compressed(layout, compressed, plain, values, tuple(shape))
    places = _compressed_places(made)
    record_result(_BUILD_COMPRESSED, (values.meta.shape,), (values, places), (made,))
    return made


_BUILD_COMPRESSED = record(
    "sparse_compressed_tensor",
    lambda grad, b, params: values_at(grad, b).view(params[0]),
    node="SparseCompressedTensorBackward0",
)


def _compressed_places(t: Tensor) -> Tensor:
    """Return the places of the values of a compressed tensor as COO indices: (batch dimensions + 2, batches * nnz)."""
    storage, meta = storage_of(t), meta_of(t)
    compressed, plain = storage.compressed, storage.plain
    batch, count, nnz = meta.shape[: meta.batch_dim], compressed.meta.shape[-1] - 1, nnz_of(t)
    with recording(False):
        batches = numel(batch)
        begins = compressed.to(dtypes.int64).reshape(batches, count + 1)
        at = torch["arange"](nnz, device=meta.device).expand(batches, nnz)
        lines = torch["searchsorted"](begins[:, 1:].contiguous(), at.contiguous(), right=True)
        rows = [lines.reshape(-1), plain.to(dtypes.int64).reshape(-1)]
        if meta.layout == "sparse_csc":
            rows.reverse()
        for size, step in reversed(list(zip(batch, contiguous_strides(batch), strict=True))):
            index = torch["arange"](batches, device=meta.device) // step % size
            rows.insert(0, index.repeat_interleave(nnz))
        return torch["stack"](rows)


def to_coo(t: Tensor) -> Tensor:
    """Return a sparse tensor in COO layout, recorded."""
    if is_coo(t):
        return t
    meta, values = meta_of(t), values_of(t)
    flat = values.reshape(-1, *meta.shape[meta.ndim - meta.dense_dim :]) if meta.batch_dim else values
    made = build(_compressed_places(t), flat, meta.shape, coalesced=meta.layout == "sparse_csr")
    return coalesce(made)


def to_compressed(t: Tensor, layout: str) -> Tensor:
    """Return a COO tensor of two sparse dimensions in CSR or CSC layout, recorded."""
    along = 0 if layout == "sparse_csr" else 1
    t = coalesce(t)
    indices, values, shape = storage_of(t).indices, values_of(t), t.meta.shape
    with recording(False):
        if along:
            order = torch["sort"](flatten(indices.flip(0), (shape[1], shape[0])), stable=True)[1]
            indices = indices.index_select(1, order)
        lines, plain = indices[along].contiguous(), indices[1 - along].contiguous()
        compressed = count_lines(lines, shape[along])
    if along:
        values = values.index_select(0, order)
    return build_compressed(layout, compressed, plain, values, shape)


def count_lines(lines: Tensor, count: int) -> Tensor:
    """Return the position at which each of `count` lines begins among sorted line numbers, and the end: (count + 1)."""
    at: Tensor = torch["arange"](count + 1, device=lines.meta.device)
    return torch["searchsorted"](lines, at)


# -- between strided and sparse -------------------------------------------------------------------------------


def values_at(t: Tensor, indices: Tensor) -> Tensor:
    """Return the values of a strided or sparse tensor at COO indices, recorded: (nnz, *dense sizes)."""
    if t.meta.sparse:
        t = coalesce(to_coo(t))
    with recording(False):
        made = _look_up(t, indices) if t.meta.sparse else _pick(t, indices)
    record_result(_VALUES_AT, (), (t, indices), (made,))
    return made


def _pick(t: Tensor, indices: Tensor) -> Tensor:
    shape, sparse_dim = t.meta.shape, indices.meta.shape[0]
    flat = flatten(indices, shape[:sparse_dim])
    return t.reshape(numel(shape[:sparse_dim]), *shape[sparse_dim:]).index_select(0, flat)


def _look_up(t: Tensor, indices: Tensor) -> Tensor:
    """Return the values of a coalesced tensor at COO indices; zeros for indices without a value."""
    storage, shape, sparse_dim = storage_of(t), t.meta.shape, indices.meta.shape[0]
    if sparse_dim != meta_of(t).sparse_dim:
        return _pick(to_dense(t), indices)
    at, is_there = find(indices, storage.indices, shape[:sparse_dim])
    values = storage.values
    if not values.meta.shape[0]:
        return values.new_zeros((indices.meta.shape[1], *values.meta.shape[1:]))
    found = values.index_select(0, at)
    return found.masked_fill(~is_there.view(-1, *(1,) * (found.meta.ndim - 1)), 0)


def find(wanted: Tensor, sorted_indices: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the position of each wanted index among sorted indices, and True for those that exist."""
    wanted, known = flatten(wanted, shape), flatten(sorted_indices, shape)
    count = known.meta.shape[0]
    if not count:
        return wanted, torch["zeros_like"](wanted, dtype=dtypes.bool_)
    at = torch["searchsorted"](known, wanted).clamp_max(count - 1)
    return at, known.index_select(0, at) == wanted


def _put_at(grad: Tensor, a: Tensor, b: Tensor) -> Tensor:
    placed = build(b, grad, a.meta.shape)
    return placed if a.meta.sparse else to_dense(placed)


_VALUES_AT = record("values_at", _put_at)


def sparse_mask(t: Tensor, mask: Tensor) -> Tensor:
    """Return the values of `t` at the places of `mask`, in its layout, recorded."""
    storage, shape = storage_of(mask), mask.meta.shape
    with recording(False):
        values = values_at(t, indices_of(mask)).view(storage.values.meta.shape)
        if is_coo(mask):
            made = make_coo(storage.indices, values, shape, storage.coalesced)
        else:
            made = make_compressed(meta_of(mask).layout, storage.compressed, storage.plain, values, shape)
    record_result(_MASK, (), (t, mask), (made,))
    return made


def _unmask(grad: Tensor, a: Tensor, b: Tensor) -> Tensor:
    kept = sparse_mask(grad, b)
    return kept if a.meta.sparse else to_dense(kept)


_MASK = record("sparse_mask", _unmask)


def to_dense(t: Tensor, masked_grad: bool = True) -> Tensor:
    """Return a sparse tensor in strided layout, recorded.

    Args:
        t: The sparse tensor.
        masked_grad: True if its gradient has values at its own places only.
    """
    with recording(False):
        made = _spread(t)
    record_result(_TO_DENSE, (masked_grad,), (t,), (made,))
    return made


def _spread(t: Tensor) -> Tensor:
    meta, values = meta_of(t), storage_of(t).values
    if is_compressed(t) and meta.batch_dim:
        values = values.reshape(-1, *values.meta.shape[meta.batch_dim + 1 :])
    sizes = meta.shape[: meta.ndim - meta.dense_dim]
    return add_rows(numel(sizes), flatten(indices_of(t), sizes), values).reshape(meta.shape)


def _dense_gradient(grad: Tensor, a: Tensor, params: tuple[Any, ...]) -> Tensor:
    (masked,) = params
    if masked:
        return sparse_mask(grad, coalesce(a) if is_coo(a) else a)
    if grad.meta.sparse or (meta_of(a).ndim > meta_of(a).sparse_dim and not is_coo(a)):
        return grad
    made = to_sparse_coo(grad, meta_of(a).sparse_dim)
    return made if is_coo(a) else to_compressed(made, meta_of(a).layout)


_TO_DENSE = record("to_dense", _dense_gradient)


def to_sparse_coo(t: Any, sparse_dim: int) -> Tensor:
    """Return a strided tensor in COO layout, recorded: its slices that are not zero."""
    shape = t.meta.shape
    with recording(False):
        is_kept = t != 0
        if sparse_dim < t.meta.ndim:
            is_kept = is_kept.reshape(*shape[:sparse_dim], numel(shape[sparse_dim:])).any(-1)
        indices = is_kept.nonzero().t().contiguous()
        made = make_coo(indices, _pick(t, indices), shape, coalesced=True)
    record_result(_TO_SPARSE, (), (t,), (made,))
    return made


_TO_SPARSE = record("to_sparse", lambda grad: to_dense(grad) if grad.meta.sparse else grad)
