"""Elementwise operators of sparse tensors: sums, products, and the functions that map zero to zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import FLOATING
from flambeau.core.layout import broadcast_shapes, numel
from flambeau.ops import copy as copies
from flambeau.ops.op import Op, table
from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tape.mode import mode, recording
from flambeau.tensor import layout_functions
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.autograd.in_place import begin_in_place, finish_in_place
from flambeau.tensor.autograd.inplace_checks import refuse_inference
from flambeau.tensor.autograd.recording import RecordPlan, record_result
from flambeau.tensor.call import call
from flambeau.tensor.sparse.primitives import (
    build,
    build_compressed,
    coalesce,
    find,
    flatten,
    indices_of,
    to_compressed,
    to_coo,
    to_dense,
    values_of,
)
from flambeau.tensor.sparse.sparse_storage import (
    is_compressed,
    is_coo,
    meta_of,
    storage_of,
)
from flambeau.tensor.tensor import Tensor

# -- values alone ---------------------------------------------------------------------------------------------


def with_values(t: Tensor, values: Tensor) -> Tensor:
    """Return a sparse tensor with other values at the indices of `t`, recorded for the values."""
    storage, shape = storage_of(t), t.meta.shape
    if is_coo(t):
        return build(storage.indices, values, shape, storage.coalesced)
    return build_compressed(meta_of(t).layout, storage.compressed, storage.plain, values, shape)


def map_values(t: Tensor, define: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a sparse tensor of a function of the values, recorded. Duplicates are summed before."""
    if is_coo(t):
        t = coalesce(t)
    return with_values(t, define(values_of(t)))


def _map(op: Op) -> Callable[..., Tensor]:
    def run(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
        return map_values(args[0], lambda values: call(op, (values, *args[1:]), params))

    return run


def _map_linear(op: Op) -> Callable[..., Tensor]:
    """Return the sparse form of an operator that is linear in its first operand: duplicate indices may stay."""

    def run(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
        t = args[0]
        with recording(False):
            made = with_values(t, call(op, (storage_of(t).values, *args[1:]), params))
        record_result(op, params, args, (made,))
        return made

    return run


_ON_VALUES = [op for op in table.values() if isinstance(op, Pointwise) and op.sparse]
for _op in _ON_VALUES:
    layout_functions.calls[_op] = (_map_linear if _op.sparse == "linear" else _map)(_op)


def _power(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    base, exponent = args
    if isinstance(exponent, Tensor) or not isinstance(base, Tensor):
        raise layout_functions.not_implemented("pow", args)
    if exponent == 0:
        raise RuntimeError(
            "pow: cannot raise to zeroth power on sparse tensor; it would make all elements ones, which is dense"
        )
    return map_values(base, lambda values: call(arithmetic.pow_, (values, exponent), params))


layout_functions.calls[arithmetic.pow_] = _power


def _copy(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    """Return a copy, in the dtype that the first of `params` names."""
    (t,), kind = args, params[0]
    storage = storage_of(t)
    with recording(False):
        values = call(copies.copy, (storage.values,), (kind, storage.values.meta.shape))
        if is_coo(t):
            made = build(storage.indices.clone(), values, t.meta.shape, storage.coalesced)
        else:
            rows, columns = storage.compressed.clone(), storage.plain.clone()
            made = build_compressed(meta_of(t).layout, rows, columns, values, t.meta.shape)
    record_result(copies.copy, params, args, (made,))
    return made


layout_functions.calls[copies.copy] = _copy

# -- sums -----------------------------------------------------------------------------------------------------


def _is_number(x: Any) -> bool:
    return not isinstance(x, Tensor) or (not x.meta.sparse and x.meta.ndim == 0)


def _sum(op: Op) -> Callable[..., Tensor]:
    """Return the sparse form of an addition or subtraction, (a, b) or (a, b, alpha)."""
    is_difference = op in (arithmetic.sub, arithmetic.sub_alpha)

    def run(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
        a, b, *alpha = args
        with recording(False):
            factor = alpha[0] if alpha else 1
            made = _add(a, b, -factor if is_difference else factor)
        record_result(op, params, args, (made,))
        return made

    return run


def _add(a: Any, b: Any, alpha: Any) -> Tensor:
    if not isinstance(b, Tensor) or not isinstance(a, Tensor) or (is_coo(a) and not b.meta.sparse):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if not b.meta.sparse:  # the sum of a compressed and a strided tensor is strided
        return _add_to_dense(b if _is_one(alpha) else b * alpha, a, 1)
    if not a.meta.sparse:
        return _add_to_dense(a, b, alpha)
    _require_alike("add", a, b)
    if is_coo(a):
        return _add_coo(a, b, alpha)
    return to_compressed(_add_coo(to_coo(a), to_coo(b), alpha), meta_of(a).layout)


def _is_one(alpha: Any) -> bool:
    return alpha.__class__ is int and alpha == 1


def _require_alike(name: str, a: Tensor, b: Tensor) -> None:
    """Raise RuntimeError where two sparse operands differ in shape, layout, sparse dimensions or device."""
    x, y = meta_of(a), meta_of(b)
    if x.device is not y.device:
        raise RuntimeError(f"{name}: expected 'other' to be on {x.device}, but got tensor on {y.device}")
    if x.shape != y.shape:
        raise RuntimeError(
            f"{name}: expected sizes of 'self' and 'other' to match, but {list(x.shape)} != {list(y.shape)}"
        )
    if x.layout != y.layout:
        raise layout_functions.not_implemented(name, (a, b))
    if x.sparse_dim != y.sparse_dim:
        raise RuntimeError(
            f"{name}: expected 'self' and 'other' to have same number of sparse dimensions, but 'self' has "
            f"{x.sparse_dim} sparse dimensions while 'other' has {y.sparse_dim} sparse dimensions"
        )


def _add_coo(a: Tensor, b: Tensor, alpha: Any) -> Tensor:
    first, second = storage_of(a), storage_of(b)
    kind = torch["promote_types"](a.meta.dtype, b.meta.dtype)
    added = second.values if _is_one(alpha) else second.values * alpha
    values = torch["cat"]([first.values.to(kind), added.to(kind)])
    joined = build(torch["cat"]([first.indices, second.indices], 1), values, a.meta.shape)
    return coalesce(joined) if first.coalesced and second.coalesced else joined


def _add_to_dense(dense: Tensor, t: Tensor, alpha: Any) -> Tensor:
    kind = torch["promote_types"](dense.meta.dtype, t.meta.dtype)
    made = dense.to(kind, copy=True)
    return add_into(made, t, alpha)


def add_into(dense: Any, t: Tensor, alpha: Any) -> Any:
    """Add `alpha` times a sparse tensor to a strided one in place, without recording."""
    if dense.meta.shape != t.meta.shape:
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size {list(dense.meta.shape)} while "
            f"other has size {list(t.meta.shape)} (FYI: dense-sparse addition does not currently support broadcasting)"
        )
    meta, storage = meta_of(t), storage_of(t)
    sizes = meta.shape[: meta.ndim - meta.dense_dim]
    values = storage.values if _is_one(alpha) else storage.values * alpha
    if meta.batch_dim:
        values = values.reshape(-1, *values.meta.shape[meta.batch_dim + 1 :])
    kind = dense.meta.dtype
    if kind is dtypes.bool_ or not (dense.meta.contiguous and meta.ndim):
        dense.copy_(dense | to_dense(t) if kind is dtypes.bool_ else dense + to_dense(t) * alpha)
        return dense
    rows = dense.view(numel(sizes), *meta.shape[meta.ndim - meta.dense_dim :])
    rows.index_add_(0, flatten(indices_of(t), sizes), values.to(kind))
    return dense


_SUMS = (arithmetic.add, arithmetic.add_alpha, arithmetic.sub, arithmetic.sub_alpha)
for _op in _SUMS:
    layout_functions.calls[_op] = _sum(_op)

# -- products and quotients -----------------------------------------------------------------------------------


def _multiply(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    a, b = args
    with recording(False):
        made = _product(a, b)
    record_result(arithmetic.mul, params, args, (made,))
    return made


def _product(a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor) or not a.meta.sparse:
        a, b = b, a
    if _is_number(b):
        return with_values(a, storage_of(a).values * b)
    if is_compressed(a):
        other = to_coo(b) if is_compressed(b) else b
        return to_compressed(_product(to_coo(a), other), meta_of(a).layout)
    if b.meta.sparse:
        _require_alike("mul", a, b)
        return _intersect(a, b)
    if broadcast_shapes([a.meta.shape, b.meta.shape]) != a.meta.shape:
        raise RuntimeError(
            f"mul: a sparse tensor of sizes {list(a.meta.shape)} is not broadcast to the sizes {list(b.meta.shape)} of "
            "a strided one; use to_dense() first"
        )
    return with_values(a, storage_of(a).values * _pick_broadcast(b, a))


def _pick_broadcast(dense: Tensor, t: Tensor) -> Tensor:
    """Return the values of a strided tensor, broadcast to the shape of `t`, at the indices of `t`."""
    meta, indices = meta_of(t), storage_of(t).indices
    sizes = (1,) * (meta.ndim - dense.meta.ndim) + dense.meta.shape
    lead, rest = sizes[: meta.sparse_dim], sizes[meta.sparse_dim :]
    scale = torch["tensor"]([int(n > 1) for n in lead], device=meta.device).view(-1, 1)
    return dense.reshape(numel(lead), *rest).index_select(0, flatten(indices * scale, lead))


def _intersect(a: Tensor, b: Tensor) -> Tensor:
    if storage_of(a).coalesced and not storage_of(b).coalesced:
        a, b = b, a
    b = coalesce(b)
    first, second, meta = storage_of(a), storage_of(b), meta_of(a)
    at, is_there = find(first.indices, second.indices, meta.shape[: meta.sparse_dim])
    kept = is_there.nonzero().view(-1)
    values = first.values.index_select(0, kept) * second.values.index_select(0, at.index_select(0, kept))
    return build(first.indices.index_select(1, kept), values, meta.shape, first.coalesced)


layout_functions.calls[arithmetic.mul] = _multiply


def _divide(op: Op) -> Callable[..., Tensor]:
    linear, rounded = _map_linear(op), _map(op)

    def run(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
        a, b = args
        if not _is_number(b):
            raise RuntimeError(
                f"Sparse division requires a scalar or zero-dim dense tensor divisor (got shape {list(b.meta.shape)} "
                "for divisor)"
            )
        if not isinstance(a, Tensor) or not a.meta.sparse:
            raise layout_functions.not_implemented("reciprocal", args)
        return (linear if op is arithmetic.div else rounded)(args, params)

    return run


_QUOTIENTS = (arithmetic.div, arithmetic.div_floor, arithmetic.floor_divide, arithmetic.div_trunc)
for _op in _QUOTIENTS:
    layout_functions.calls[_op] = _divide(_op)

# -- in place -------------------------------------------------------------------------------------------------


def change(record: Any, target: Tensor, args: Sequence[Any], params: tuple[Any, ...], run: Any) -> Tensor:
    """Assign to `target` the value that `run()` computes without recording. Autograd records one in-place change."""
    refuse_inference(target)
    tracked = mode.recording and any(isinstance(a, Tensor) and requires_grad(a) for a in (*args, target))
    node = None
    if tracked:
        node = begin_in_place(RecordPlan(record, params, args, (target.meta,)), args, target)
    with recording(False):
        put(target, run())
    target.counter.version += 1
    if node is not None:
        finish_in_place(node, args, target)
    return target


def put(target: Tensor, result: Tensor) -> None:
    """Copy the elements of `result` to `target` without recording and without a version change."""
    if result is target:
        return
    if not target.meta.sparse:
        version = target.counter.version
        target.copy_(to_dense(result) if result.meta.sparse else result)
        target.counter.version = version
        return
    if not result.meta.sparse or meta_of(result).layout != meta_of(target).layout:
        raise RuntimeError("the result of a change in place of a sparse tensor has another layout")
    kind = target.meta.dtype
    if result.meta.dtype is not kind:
        if result.meta.dtype.category > kind.category and result.meta.dtype.category >= FLOATING:
            raise RuntimeError(
                f"result type {result.meta.dtype.torch_name} can't be cast to the desired output type "
                f"{kind.torch_name}"
            )
        result = result.to(kind)
    old, new = storage_of(target), storage_of(result)
    for name in (*type(old).__slots__, "values"):
        setattr(old, name, getattr(new, name))
    target.meta = result.meta


def _change_by(op: Pointwise) -> Callable[..., Tensor]:
    def run(target: Tensor, args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
        if op.sparse == "values" and is_coo(target) and not storage_of(target).coalesced:
            raise RuntimeError(f"{op.name}_ requires coalesced input")
        define = layout_functions.calls[op]
        return change(op, target, args, params, lambda: define(args, params))

    return run


for _op in (*_ON_VALUES, *_QUOTIENTS, arithmetic.mul):
    layout_functions.changes[_op] = _change_by(_op)


def _change_by_sum(op: Pointwise) -> Callable[..., Tensor]:
    general = _change_by(op)
    sign = -1 if op in (arithmetic.sub, arithmetic.sub_alpha) else 1

    def run(target: Tensor, args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
        a, b, *alpha = args
        if a is not target or target.meta.sparse or not isinstance(b, Tensor) or not b.meta.sparse:
            return general(target, args, params)
        factor = sign * (alpha[0] if alpha else 1)
        return change(op, target, args, params, lambda: add_into(target, b, factor))

    return run


for _op in _SUMS:
    layout_functions.changes[_op] = _change_by_sum(_op)


def _change_by_copy(target: Tensor, args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    (source,) = args
    if not (source.meta.sparse and target.meta.sparse):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! Found self type = "
            f"{target.type()} and src type = {source.type()}"
        )
    if meta_of(source).layout != meta_of(target).layout:
        raise RuntimeError("copy of sparse tensors is only supported between the same layouts")
    put(target, source.to(device=target.meta.device, dtype=target.meta.dtype, copy=True))
    target.counter.version += 1
    return target


layout_functions.changes[copies.copy] = _change_by_copy


def _zero(target: Tensor, args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    if args and (isinstance(args[0], Tensor) or args[0] != 0):
        raise layout_functions.not_implemented("fill_.Scalar", (target,))
    return change(copies.fill, target, args, params, lambda: empty_like(target))


layout_functions.changes[copies.fill] = _zero


def empty_like(t: Tensor) -> Tensor:
    """Return a sparse tensor of the same meta without values."""
    meta, storage = meta_of(t), storage_of(t)
    batch = meta.shape[: meta.batch_dim]
    values = storage.values.new_empty((*batch, 0, *meta.shape[meta.ndim - meta.dense_dim :]))
    if is_coo(t):
        return build(storage.indices.new_empty((meta.sparse_dim, 0)), values, meta.shape, coalesced=True)
    plain = storage.plain.new_empty((*batch, 0))
    return build_compressed(meta.layout, torch["zeros_like"](storage.compressed), plain, values, meta.shape)
