"""Joining and rearranging kernels: cat, flip, roll, triangles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import DTYPES, dtype, int32, int64
from flambeau.core.layout import (
    Strides,
    channels_last_strides,
    contiguous_strides,
    dense_strides,
    wrap_dim,
)
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Expression, Kernel, Launch, Routine
from flambeau.ops.copy import caster
from flambeau.ops.index_common import fit
from flambeau.ops.op import (
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    define,
    note,
    one_device,
)
from flambeau.ops.pointwise.dtype_promotion import result_type
from flambeau.ops.view import distinct
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]


# -- cat ------------------------------------------------------------------------------------------------


def _cat_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: dim, and whether `stack` created the dimension."""
    metas = [x for x in operands if isinstance(x, Meta)]
    for i, meta in enumerate(metas):
        if meta.ndim == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    where = one_device(metas, "cat", ["tensors"] * len(metas))
    first = next((m for m in metas if m.shape != (0,)), metas[0])
    dim = wrap_dim(params[0], first.ndim)
    length = 0
    for i, meta in enumerate(metas):
        if meta.shape == (0,):  # for compatibility, an empty vector joins tensors of any shape
            continue
        _check_joins(first, meta, dim, i)
        length += meta.shape[dim]
    shape = (*first.shape[:dim], length, *first.shape[dim + 1 :])
    strides = _stacked_strides(metas, dim) if params[1:] else _joined_strides(metas, shape)
    out = Meta.of(shape, strides, result_type(metas, metas[0].dtype), where)
    return Signature((out,), tuple(metas), (dim,))


def _joined_strides(metas: Sequence[Meta], shape: Strides) -> Strides:
    """Return the strides of a result: channels last if all tensors have it, ignoring an empty vector."""
    last = len(shape) in (4, 5) and all(meta.channels_last for meta in metas)
    return channels_last_strides(shape) if last else contiguous_strides(shape)


def _stacked_strides(metas: Sequence[Meta], dim: int) -> Strides:
    """Return the strides of a stack. PyTorch joins tensors along the dimension after the new one and splits it."""
    parts = [
        m.with_(m.shape[:dim] + m.shape[dim + 1 :], m.strides[:dim] + m.strides[dim + 1 :]) for m in metas
    ]
    old = parts[0].shape
    if 0 in old:  # a view without elements is contiguous
        return contiguous_strides((*old[:dim], len(parts), *old[dim:]))
    strides = _joined_strides(parts, (*old[:dim], old[dim] * len(parts), *old[dim + 1 :]))
    return (*strides[:dim], strides[dim] * old[dim], *strides[dim:])


def _check_joins(first: Meta, meta: Meta, dim: int, position: int) -> None:
    if meta.ndim != first.ndim:
        raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {meta.ndim}")
    for d, (want, have) in enumerate(zip(first.shape, meta.shape, strict=True)):
        if d != dim and want != have:
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {dim}. Expected size {want} but got size "
                f"{have} for tensor number {position} in the list."
            )


def _cat_host(launch: Launch) -> Body:
    dim = launch.params[0]
    kind = launch.outputs[0].dtype
    parts, start = [], 0
    for i, meta in enumerate(launch.inputs):
        assert isinstance(meta, Meta)
        if meta.shape == (0,):
            continue
        end = start + meta.shape[dim]
        parts.append((i, (*[slice(None)] * dim, slice(start, end)), caster(meta.dtype, kind)))
        start = end

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        for i, place, store in parts:
            store(outputs[0][place], inputs[i])

    return body


def _cat_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(2, 3), make(4, 3), make(0)), (0,)), ((make(2, 3), make(2, 1)), (-1,))]


def _cat_back(grad: Any, metas: Any, params: Any, needs: Any) -> list[Any]:
    dim, start, given = params[0], 0, []
    for meta, needed in zip(metas, needs, strict=True):
        if meta.shape == (0,):  # an empty vector joins anything
            given.append(grad.new_zeros((0,)) if needed else None)
            continue
        size = meta.shape[dim]
        given.append(grad.narrow(dim, start, size) if needed else None)
        start += size
    return given


cat = define(
    Op(
        "cat",
        _cat_rule,
        Kernel("cat", _cat_host, cuda=Routine("index.joining:cat"), work=element_work.concatenation),
        DTYPES,
        _cat_samples,
        derivative=Derivative(whole=_cat_back, linear="together"),
    )
)


# -- flip, roll -----------------------------------------------------------------------------------------


def _flip_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    dims = tuple(distinct(params[0], x.ndim))
    dims = dims if x.ndim else ()
    return Signature((x.with_(strides=dense_strides(x.shape, x.strides)),), (x,), (dims,))


def _flip_host(launch: Launch) -> Body:
    dims = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        np.copyto(outputs[0], np.flip(inputs[0], dims))

    return body


def _roll_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: shifts and dims, of one length; no dims rolls the flattened tensor."""
    x, (shifts, dims) = operands[0], params
    assert isinstance(x, Meta)
    if not shifts:
        raise RuntimeError("`shifts` required")
    if len(shifts) != len(dims) and not (len(shifts) == 1 and not dims):
        counted = f"shifts: {len(shifts)}, dims:{len(dims)}"
        raise RuntimeError(f"shifts and dimensions must align. {counted}")
    if x.numel == 0:  # PyTorch checks no dim then
        return Signature((x.with_(strides=dense_strides(x.shape, x.strides)),), (x,), (shifts, ()))
    if dims and not x.ndim:
        raise IndexError(f"Dimension specified as {dims[0]} but tensor has no dimensions")
    dims = tuple([wrap_dim(d, x.ndim) for d in dims])
    last = bool(dims) and x.channels_last and x.device.type != "cuda"  # PyTorch rolls by joining then
    return Signature((Meta.laid(x.shape, x.dtype, x.device, last),), (x,), (shifts, dims))


def _roll_host(launch: Launch) -> Body:
    shifts, dims = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        rolled = np.roll(inputs[0], shifts, dims) if dims else np.roll(inputs[0], shifts[0])
        np.copyto(outputs[0], rolled)

    return body


def _flip_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(3, 4),), ((0,),)), ((make(3, 4),), ((0, -1),)), ((make(),), ((),))]


def _roll_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(3, 4),), ((2,), ())), ((make(3, 4),), ((1, -2), (0, 1)))]


flip = define(
    Op(
        "flip",
        _flip_rule,
        Kernel(
            "flip", _flip_host, cuda=Routine("index.joining:flip"), work=element_work.per_element(65, 0.7)
        ),
        DTYPES,
        _flip_samples,
        derivative=Derivative(lambda grad, params: grad.flip(params[0]), linear="together"),
    )
)
roll = define(
    Op(
        "roll",
        _roll_rule,
        Kernel("roll", _roll_host, cuda=Routine("index.joining:roll"), work=element_work.per_element(140)),
        DTYPES,
        _roll_samples,
        derivative=Derivative(
            lambda grad, params: grad.roll([-s for s in params[0]], params[1]), linear="together"
        ),
    )
)


# -- triangles ------------------------------------------------------------------------------------------


def _triangle_rule(name: str) -> Any:
    def rule(operands: Sequence[Operand], params: Params) -> Signature:
        x = operands[0]
        assert isinstance(x, Meta)
        if x.ndim < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        rows, columns = x.shape[-2:]  # all diagonals outside of the matrix are equivalent
        diagonal = max(-rows - 1, min(params[0], columns + 1))
        return Signature((Meta.contiguous_of(x.shape, x.dtype, x.device),), (x,), (diagonal,))

    return rule


def _triangle_host(lower: bool) -> Any:
    def host(launch: Launch) -> Body:
        rows, columns = launch.outputs[0].shape[-2:]
        kept = np.tri(rows, columns, launch.params[0] if lower else launch.params[0] - 1, dtype=bool)
        dropped = ~kept if lower else kept

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            if not np.may_share_memory(outputs[0], inputs[0]):
                np.copyto(outputs[0], inputs[0])
            np.copyto(outputs[0], np.zeros((), outputs[0].dtype), where=dropped)

        return body

    return host


def _triangle_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(2, 3, 4),), (k,)) for k in (-1, 0, 2)]


def _triangle_form(lower: bool) -> Expression:
    """Return the CUDA implementation of tril or triu: k0 columns, k1 rows, k2 the diagonal, i the row-major index."""

    def text(launch: Launch) -> str:
        number = "u32" if launch.outputs[0].numel < 1 << 31 else "u64"
        column, row = f"({number})i % ({number})k0", f"({number})i / ({number})k0 % ({number})k1"
        return f"((i64)({column}) - (i64)({row}) {'<=' if lower else '>='} k2) ? a : T()"

    def constants(launch: Launch) -> Sequence[float]:
        rows, columns = launch.outputs[0].shape[-2:]
        return (columns, rows, launch.params[0])

    return Expression(text, constants=constants, indexed=True)


tril = define(
    Op(
        "tril",
        _triangle_rule("tril"),
        Kernel(
            "tril", _triangle_host(True), cuda=_triangle_form(True), work=element_work.per_element(60, 0.4)
        ),
        DTYPES,
        _triangle_samples,
        derivative=Derivative(lambda grad, params: grad.tril(params[0]), linear="together"),
    )
)
triu = define(
    Op(
        "triu",
        _triangle_rule("triu"),
        Kernel(
            "triu", _triangle_host(False), cuda=_triangle_form(False), work=element_work.per_element(60, 0.4)
        ),
        DTYPES,
        _triangle_samples,
        derivative=Derivative(lambda grad, params: grad.triu(params[0]), linear="together"),
    )
)


def _indices_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: row, col, offset, dtype, device, lower."""
    row, col, offset, kind, where, lower = params
    begin, end = _row_ends(row, col, offset, lower)
    return Signature((Meta.contiguous_of((2, int(np.sum(end - begin))), kind, where),), (), params)


def _row_ends(row: int, col: int, offset: int, lower: bool) -> tuple[Array, Array]:
    """Return the first and the end column of a triangle in each row."""
    on = np.arange(row) + offset
    return (
        (np.zeros_like(on), np.clip(on + 1, 0, col))
        if lower
        else (np.clip(on, 0, col), np.full_like(on, col))
    )


def _indices_host(launch: Launch) -> Body:
    row, col, offset, _, _, lower = launch.params
    begin, end = _row_ends(row, col, offset, lower)
    rows = np.flatnonzero(end > begin)
    begin, end = begin[rows], end[rows]
    starts = np.cumsum(end - begin) - (end - begin)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        """Compute indices as running sums of steps: from one element to the next, and from one row to the next."""
        whole = outputs[0].dtype in (np.int32, np.int64)
        sums = outputs[0] if whole else np.empty(outputs[0].shape, np.int64)
        next_rows, next_columns = np.diff(rows, prepend=0), begin - np.append(0, end[:-1] - 1)
        for line, step, steps in zip(sums, (0, 1), (next_rows, next_columns), strict=True):
            line[...] = step
            line[starts] = steps
            np.cumsum(line, out=line)
        if not whole:
            outputs[0][...] = sums

    return body


def _indices_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (), (3, 4, 0, kind, CPU, True)
    yield (), (4, 3, -1, kind, CPU, False)


triangle_indices = define(
    Op(
        "triangle_indices",
        _indices_rule,
        Kernel("triangle_indices", _indices_host, cuda=Routine("index.joining:triangle_indices")),
        DTYPES,
        _indices_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
note(triangle_indices, "tril_indices")


# -- repeats --------------------------------------------------------------------------------------------


def _repeats_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: the sum of the repeats, which the host had to read."""
    x = operands[0]
    assert isinstance(x, Meta)
    return Signature((Meta.contiguous_of((params[0],), x.dtype, x.device),), (x,), params)


def _repeats_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        if inputs[0].size and inputs[0].min() < 0:
            raise RuntimeError("repeats can not be negative")
        places = np.repeat(np.arange(inputs[0].size), inputs[0])
        fit(launch, outputs[0], places, inputs[0].size - 1)

    return body


def _total_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    return Signature((Meta.contiguous_of((), x.dtype, x.device),), (x,))


def _total_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        if inputs[0].size and inputs[0].min() < 0:
            raise RuntimeError("repeats can not be negative")
        outputs[0][...] = inputs[0].sum()

    return body


def _total_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(5, low=0, high=3),), ()


def _repeats_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    repeats = make(5, low=0, high=3)
    yield (repeats,), (int(repeats.sum()),)


repeats_total = define(
    Op(
        "repeats_total",
        _total_rule,
        Kernel("repeats_total", _total_host, cuda=Routine("index.joining:repeats_total")),
        (int32, int64),
        _total_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
note(repeats_total, "repeat_interleave")
repeat_places = define(
    Op(
        "repeat_places",
        _repeats_rule,
        Kernel("repeat_places", _repeats_host, cuda=Routine("index.joining:repeat_places")),
        (int32, int64),
        _repeats_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
note(repeat_places, "repeat_interleave")
