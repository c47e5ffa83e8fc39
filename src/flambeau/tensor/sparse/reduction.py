"""Sums, norms and softmax of sparse tensors. All are composed of the primitives, so gradients follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import INTEGRAL, dtype, int64
from flambeau.ops.reduce import reduction
from flambeau.ops.reduce.reduction import reduced_dims
from flambeau.tape.mode import recording
from flambeau.tensor import layout_functions
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.call import call
from flambeau.tensor.sparse.elementwise import with_values
from flambeau.tensor.sparse.primitives import build, coalesce, flatten, to_compressed, to_coo, values_of
from flambeau.tensor.sparse.sparse_storage import is_compressed, is_coo, meta_of, storage_of
from flambeau.tensor.tensor import Tensor


def _sum_op(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    (t,), (dims, keepdim, kind) = args, params
    if reduced_dims(dims, t.meta.ndim) == tuple(range(t.meta.ndim)) and not keepdim:
        with recording(False):
            made = call(reduction.sum_, (storage_of(t).values,), (None, False, kind))
        record_result(reduction.sum_, params, args, (made,))
        return made
    if kind is None and t.meta.dtype.category <= INTEGRAL:
        kind = int64
    summed = sorted(reduced_dims(dims, t.meta.ndim))
    if meta_of(t).batch_dim + meta_of(t).sparse_dim == len(
        [d for d in summed if d < t.meta.ndim - meta_of(t).dense_dim]
    ):
        with recording(False):  # the result is strided, and so is the gradient
            made = sum_dims(t, dims, kind)
            made = (
                made.view([1 if d in summed else n for d, n in enumerate(t.meta.shape)]) if keepdim else made
            )
        record_result(reduction.sum_, params, args, (made,))
        return made
    made = sum_dims(t, dims, kind)
    if keepdim:
        for d in summed:
            made = made.unsqueeze(d)
    is_matrix = is_compressed(t) and made.meta.sparse and made.meta.ndim == 2
    return to_compressed(made, meta_of(t).layout) if is_matrix else made


layout_functions.calls[reduction.sum_] = _sum_op


def sum_dims(t: Tensor, dims: Any, kind: dtype | None) -> Tensor:
    """Return sums over dimensions, recorded: strided where no sparse dimension is left, else in COO layout."""
    t = coalesce(to_coo(t.to(kind) if kind is int64 else t))
    meta, summed = meta_of(t), reduced_dims(dims, t.meta.ndim)
    values = values_of(t)
    if kind is not None:
        values = values.to(kind)
    within = [d - meta.sparse_dim + 1 for d in summed if d >= meta.sparse_dim]
    if within:
        values = values.sum(within, dtype=kind)
    kept = [d for d in range(meta.sparse_dim) if d not in summed]
    if not kept:
        return values.sum(0, dtype=kind)
    shape = [n for d, n in enumerate(meta.shape) if d not in summed]
    with recording(False):
        indices = storage_of(t).indices
        if len(kept) < meta.sparse_dim:
            indices = torch["stack"]([indices[d] for d in kept])
    made = build(indices, values, shape, coalesced=len(kept) == meta.sparse_dim)
    return coalesce(made)


def _norm(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    """Return a norm of all elements."""
    (t,) = args
    if is_coo(t):
        t = coalesce(t)
    if reduced_dims(params[0], t.meta.ndim) != tuple(range(t.meta.ndim)):
        raise RuntimeError(
            "norm_sparse currently only supports full reductions, so 'dim' must either be empty or contain all "
            "dimensions of the input"
        )
    return call(reduction.norm, (values_of(t).reshape(-1),), (None, *params[1:]))


layout_functions.calls[reduction.norm] = _norm


def _any(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    (t,) = args
    if params[0] is not None:
        raise layout_functions.not_implemented("any.dim", args)
    return call(reduction.any_, (storage_of(t).values,), params)


layout_functions.calls[reduction.any_] = _any


def softmax(t: Tensor, dim: int, kind: dtype | None, is_log: bool) -> Tensor:
    """Return the (log-)softmax along a dimension over the elements that a COO tensor holds; others count as -inf."""
    if kind is not None and kind is not t.meta.dtype:
        t = t.to(kind)
    meta, t = meta_of(t), coalesce(t)
    values = values_of(t)
    if dim >= meta.sparse_dim:
        function = torch["log_softmax" if is_log else "softmax"]
        return with_values(t, function(values, dim - meta.sparse_dim + 1))
    if not values.meta.numel:
        return with_values(t, values)
    with recording(False):
        indices, sizes = storage_of(t).indices, meta.shape[: meta.sparse_dim]
        kept = [d for d in range(meta.sparse_dim) if d != dim]
        lines = indices.new_zeros((indices.meta.shape[1],))
        if kept:
            rows = torch["stack"]([indices[d] for d in kept])
            lines = torch["unique"](flatten(rows, [sizes[d] for d in kept]), return_inverse=True)[1]
        count = int(lines.max()) + 1
        places = lines.view(-1, *(1,) * (values.meta.ndim - 1)).expand(values.meta.shape)
        lowest = values.new_full((count, *values.meta.shape[1:]), -math.inf)
        top = lowest.scatter_reduce(0, places, values, "amax").index_select(0, lines)
    shifted = values - top
    powers = shifted.exp()
    total = (
        powers.new_zeros((count, *values.meta.shape[1:])).index_add(0, lines, powers).index_select(0, lines)
    )
    return with_values(t, shifted - total.log() if is_log else powers / total)
