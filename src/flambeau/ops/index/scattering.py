"""gather and scatter along a dimension, take and put over all elements.

The rules in ops/index/indexing.py for operators that write and for indices out of range apply here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, dtype, int64
from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine, Touches
from flambeau.ops.autocast_rules import UNCHANGED, WIDEST_ON_CUDA, AutocastRule
from flambeau.ops.derivative_helpers import refuse_derivative
from flambeau.ops.index.ufunc_at import fold_at
from flambeau.ops.index_common import (
    INDEX_TYPES,
    Array,
    Params,
    contiguous,
    in_range,
    indexes,
    meta_of_copy,
    refuse_empty,
    sample_indices,
    start_from,
    tensor_at,
    zeros_of,
)
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, note, one_device
from flambeau.ops.work import selection_work


def _grid(index: Array, size: int, dim: int) -> tuple[Any, ...]:
    """Return the index arrays of the elements that `index` selects along `dim`: one array for each dimension.

    If the index is an expanded vector, the other positions are slices, so that whole rows are copied.

    Raises:
        RuntimeError: If the index is out of range.
    """
    others = [slice(n) for n in index.shape]
    strides = [step for d, step in enumerate(index.strides) if d != dim and index.shape[d] > 1]
    if index.size and not any(strides):
        vector = index[tuple([slice(None) if d == dim else 0 for d in range(index.ndim)])]
        return (*others[:dim], in_range(vector, size, dim), *others[dim + 1 :])
    own = [np.arange(n).reshape(-1, *[1] * (index.ndim - 1 - d)) for d, n in enumerate(index.shape)]
    return (*own[:dim], in_range(index, size, dim), *own[dim + 1 :])


def _grid_of(launch: Launch) -> Callable[[Sequence[Array]], Any]:
    """Return the elements of the first input that `index`, the second input, selects along dimension params[0]."""
    shape, dim = tensor_at(launch, 0).shape or (1,), launch.params[0]

    def places(indices: Sequence[Array]) -> Any:
        if not indices[0].size:  # an empty index may have any number of dimensions
            return slice(0)
        return _grid(np.atleast_1d(indices[0]), shape[dim], dim)

    return places


# -- values that meet at one place ---------------------------------------------------------------------

_REDUCE_AT: dict[str, Any] = {
    "sum": np.add, "add": np.add, "mean": np.add, "prod": np.multiply, "multiply": np.multiply,
    "amax": np.maximum, "amin": np.minimum,
}  # fmt: skip


def reduce_at(out: Array, places: Any, source: Any, how: str, include_self: bool) -> None:
    """Reduce the elements of `source` into the elements of `out` at `places`, where a place may repeat.

    Args:
        how: The reduction: "sum", "mean", "prod", "amax", "amin"; "add" and "multiply" as in `scatter_`.
        include_self: True if the old element of `out` at a place takes part in the reduction.
    """
    with np.errstate(all="ignore"):
        if not include_self:
            out[places] = _identity(how, out.dtype)
        fold_at(_REDUCE_AT[how], out, places, source)
        if how == "mean":
            count = np.full(out.shape, 1 if include_self else 0, np.int64)
            fold_at(np.add, count, places, 1)
            _divide(out, np.maximum(count, 1))


def _divide(out: Array, count: Array) -> None:
    if np.issubdtype(out.dtype, np.integer):
        np.floor_divide(out, count, out=out, casting="unsafe")
    else:
        np.copyto(out, (out / count.astype(out.dtype)).astype(out.dtype))


def _identity(how: str, kind: Any) -> Any:
    if how in ("sum", "add", "mean"):
        return 0
    if how in ("prod", "multiply"):
        return 1
    if kind == np.bool_:
        return how == "amin"
    if np.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        return info.min if how == "amax" else info.max
    return -np.inf if how == "amax" else np.inf


# -- along one dimension: gather, scatter --------------------------------------------------------------


def _check_grid(index: Meta, x: Meta, dim: int, name: str, other: str, apart: bool = True) -> None:
    """Check that `index` is not larger than `x` in any dimension, except in `dim` if `apart` is True."""
    if max(index.ndim, 1) != max(x.ndim, 1):
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {other} tensor")
    for d, (n, limit) in enumerate(zip(index.shape or (1,), x.shape or (1,), strict=True)):
        if n > limit and not (apart and d == dim):
            beyond = f" apart from dimension {dim}" if apart else ""
            raise RuntimeError(
                f"Size does not match at dimension {d} expected index {list(index.shape)} to be no larger "
                f"than {name} {list(x.shape)}{beyond}"
            )


def _gather_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    where = one_device(operands, "gather", ("self", "index"))
    dim = wrap_dim(params[0], x.ndim)
    if index.dtype not in INDEX_TYPES:
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    if index.numel:
        _check_grid(index, x, dim, "self", "input")
    return Signature((Meta.contiguous_of(index.shape, x.dtype, where),), (x, index), (dim,))


def _gather_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index = np.atleast_1d(inputs[0]), np.atleast_1d(inputs[1])
        found = x[_grid(index, x.shape[dim], dim)]
        np.copyto(outputs[0], found.reshape(outputs[0].shape))

    return body


def _gather_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(5, 4), sample_indices(0, 5, 3, 2)), (0,)),
        ((make(5, 4), sample_indices(0, 4, 5, 6)), (1,)),
    ]


gather = define(
    Op(
        "gather",
        _gather_rule,
        Kernel(
            "gather",
            _gather_host,
            cuda=Routine("index.indexing:gather"),
            touches=lambda launch: Touches(False, (1,), _grid_of(launch)),
            work=selection_work.gather,
        ),
        DTYPES,
        _gather_samples,
        derivative=Derivative(
            lambda grad, b, metas, params: zeros_of(grad, metas).scatter_add_(params[0], b, grad),
            linear="together",
        ),
    )
)


def _scatter_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: dim, how ("" assigns), include_self, the function's name, whether the order of
    writes is fixed.
    """
    x, index, source = operands
    dim, how, include_self, name, fixed = params
    assert isinstance(x, Meta) and isinstance(index, Meta)
    one_device([x, index, *([source] if isinstance(source, Meta) else [])])
    dim = wrap_dim(dim, x.ndim)
    if index.dtype not in INDEX_TYPES:
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index")
    if isinstance(source, Meta) and source.dtype is not x.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    if index.numel:
        _check_grid(index, x, dim, "self", "self")
        refuse_empty(x, dim, index)
        if isinstance(source, Meta):
            _check_grid(index, source, dim, "src", "src", apart=False)
    value = source if isinstance(source, Meta) else x.dtype
    return Signature((contiguous(x),), (x, index, value), (dim, how, include_self, fixed))


@indexes
def _scatter_host(launch: Launch) -> Body:
    dim, how, include_self = launch.params[:3]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, index, source = inputs
        if not index.size:  # an empty index may have any number of dimensions
            return start_from(outputs[0], x)
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        index = np.atleast_1d(index)
        places = _grid(index, out.shape[dim], dim)
        if isinstance(source, np.ndarray):
            source = np.atleast_1d(source)[tuple([slice(n) for n in index.shape])]
        else:
            source = np.asarray(source).astype(out.dtype)
        start_from(outputs[0], x)
        if how:
            reaches = [place if isinstance(place, slice) else slice(None) for place in places]
            reduce_at(out[tuple(reaches)], places, source, how, include_self)
        else:
            out[places] = source

    return body


def _scatter_touches(launch: Launch) -> Touches | None:
    """Return the elements that PyTorch's kernels access: a mean divides the whole target."""
    _, how, include_self = launch.params[:3]
    if how == "mean":
        return None
    return Touches(True, (1,), _grid_of(launch), reads=bool(how) and include_self)


def _scatter_samples(how: str) -> Callable[[Make, dtype], Iterable[Sample]]:
    def samples(make: Make, kind: dtype) -> Iterable[Sample]:
        index = np.array([[0, 2, 1, 4], [3, 0, 0, 1]])
        return [((make(5, 4), index, make(3, 4)), (0, how, True, "scatter"))]

    return samples


def scatter_back(grad: Any, a: Any, b: Any, c: Any, out: Any, params: Any) -> Any:
    dim, how, include_self = params[:3]
    if how == "mean":
        given = grad / _share_of_mean(grad, b, dim, include_self)
    elif how in ("amax", "amin"):
        given = (a == out) * (grad / _share_of_extreme(a, b, c, out, params))
    elif how == "prod":
        own = a.masked_fill(a == 0, 1)
        given = grad * _product(own, b, c, params) / own
    else:
        given = grad
    return given if include_self else given.scatter(dim, b, 0)


def _gathered_back(grad: Any, b: Any, params: Any, metas: Any) -> Any:
    """Return each source's gradient, which is that of the element it was written to."""
    return _to_source(grad.gather(params[0], b), metas[2])


def scatter_source_back(grad: Any, a: Any, b: Any, c: Any, out: Any, params: Any, metas: Any) -> Any:
    dim, how, include_self = params[:3]
    if how == "mean":
        grad = grad / _share_of_mean(grad, b, dim, include_self)
    elif how in ("amax", "amin"):
        share = grad / _share_of_extreme(a, b, c, out, params)
        part = _as_source(b, c)
        return _to_source((part == out.gather(dim, b)) * share.gather(dim, b), metas[2])
    elif how == "prod":
        part = _as_source(b, c)
        zero = part == 0
        zeros = grad.new_zeros(grad.shape).scatter_add(dim, b, zero.to(grad.dtype)).gather(dim, b)
        alone = zero & (zeros == 1)  # only at a single zero is the product of the other elements not zero
        others = _product(a, b, part.masked_fill(alone, 1), params).gather(dim, b).masked_fill(~alone, 0)
        share = (out.gather(dim, b) / part.masked_fill(zero, 1)).masked_fill(zero, 0) + others
        return _to_source(grad.gather(dim, b) * share, metas[2])
    return _gathered_back(grad, b, params, metas)


def _product(a: Any, index: Any, source: Any, params: Any) -> Any:
    return a.scatter_reduce(params[0], index, source, "prod", include_self=params[2])


def _share_of_mean(grad: Any, index: Any, dim: int, include_self: bool) -> Any:
    counts = grad.new_ones(grad.shape) if include_self else grad.new_zeros(grad.shape)
    return counts.scatter_add(dim, index, grad.new_ones(index.shape)).clamp(min=1)


def _share_of_extreme(a: Any, index: Any, source: Any, out: Any, params: Any) -> Any:
    """Return the number of elements equal to each result of amax or amin, among which its gradient is divided."""
    dim, _, include_self = params[:3]
    own = (a == out).to(out.dtype)
    own = own if include_self else own.scatter(dim, index, 0)
    given = (_as_source(index, source) == out.gather(dim, index)).to(out.dtype)
    return own.scatter_add(dim, index, given).clamp(min=1)


def _as_source(index: Any, source: Any) -> Any:
    """Return the part of `source` that is written: its first `index.shape[d]` elements in each dimension d."""
    for dim, size in enumerate(index.shape):
        source = source.narrow(dim, 0, size)
    return source


def _to_source(grad: Any, meta: Any) -> Any:
    """Return the gradient of the whole source, with zeros for elements that were not written."""
    if meta is None:
        return grad.sum()
    if grad.meta.shape == meta.shape:
        return grad
    whole = grad.new_zeros(meta.shape)
    part = whole
    for dim, size in enumerate(grad.meta.shape):
        part = part.narrow(dim, 0, size)
    part.copy_(grad)
    return whole


def _scatter(name: str, how: str, derivative: Derivative, autocast: AutocastRule = UNCHANGED) -> Op:
    """Return an operator of the scatter family with the reduction `how`."""
    return define(
        Op(
            name, _scatter_rule, _SCATTER, DTYPES, _scatter_samples(how),
            flags=("deterministic",), derivative=derivative, autocast=autocast,
        )
    )  # fmt: skip


_SCATTER = Kernel(
    "scatter",
    _scatter_host,
    cuda=Routine("index.indexing:scatter"),
    touches=_scatter_touches,
    work=selection_work.scatter,
)
scatter = _scatter(
    "scatter",
    "",
    Derivative(
        lambda grad, b, params: grad.scatter(params[0], b, 0),
        None,
        _gathered_back,
    ),
)
note(scatter, overwrites=True)
scatter_add = _scatter(
    "scatter_add",
    "sum",
    Derivative(
        lambda grad: grad,
        None,
        _gathered_back,
    ),
    autocast=WIDEST_ON_CUDA,
)
scatter_reduce = _scatter("scatter_reduce", "sum", Derivative(scatter_back, None, scatter_source_back))
scatter_reducing = _scatter(
    "scatter.reduce", "multiply", refuse_derivative("scatter")
)  # `scatter` with `reduce`
# -- over all elements: take, put ----------------------------------------------------------------------


def _flat_places(index: Array, count: int) -> Array:
    places = index.astype(np.intp)
    bad = (places < -count) | (places >= count)
    if bad.any():
        raise IndexError(
            f"out of range: tried to access index {places[bad][0]} on a tensor of {count} elements."
        )
    return places


def _flat_of(launch: Launch) -> Callable[[Sequence[Array]], Any]:
    """Return the second input's indices as indices into the flattened first input."""
    x = tensor_at(launch, 0)

    def places(indices: Sequence[Array]) -> Any:
        flat = _flat_places(indices[0], x.numel).reshape(-1) % max(x.numel, 1)
        return np.unravel_index(flat, x.shape or (1,))

    return places


def _take_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    where = one_device(operands)
    if index.dtype is not int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {index.dtype.torch_name}")
    if x.numel == 0 and index.numel:
        raise IndexError("take(): tried to take from an empty tensor")
    return Signature((Meta.contiguous_of(index.shape, x.dtype, where),), (x, index))


def _take_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index = inputs
        np.copyto(outputs[0], x.reshape(-1)[_flat_places(index, x.size)])

    return body


def _put_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index, source = operands
    assert isinstance(x, Meta) and isinstance(index, Meta) and isinstance(source, Meta)
    one_device(operands)
    if index.dtype is not int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype.torch_name}")
    if x.dtype is not source.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{x.dtype.torch_name} and source.dtype = {source.dtype.torch_name}"
        )
    if source.numel != index.numel:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.numel}, index.numel() = {index.numel}"
        )
    if x.numel == 0 and index.numel:
        raise IndexError("put_(): Tried to put elements into an empty tensor")
    return Signature((meta_of_copy(x),), (x, index, source), params)


@indexes
def _put_host(launch: Launch) -> Body:
    accumulate = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index, source = inputs
        out = outputs[0]
        start_from(out, x)
        out = np.atleast_1d(out)
        places = np.unravel_index(_flat_places(index, x.size).reshape(-1) % max(x.size, 1), out.shape)
        if accumulate:
            fold_at(np.add, out, places, source.reshape(-1))
        else:
            out[places] = source.reshape(-1)

    return body


def _take_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), sample_indices(-20, 20, 3, 2)), ())]


def _put_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), np.array([3, -1]), make(2)), (accumulate,)) for accumulate in (False, True)]


take = define(
    Op(
        "take",
        _take_rule,
        Kernel(
            "take",
            _take_host,
            cuda=Routine("index.indexing:take"),
            touches=lambda launch: Touches(False, (1,), _flat_of(launch)),
            work=selection_work.read_rows,
        ),
        DTYPES,
        _take_samples,
        derivative=Derivative(
            lambda grad, b, metas: zeros_of(grad, metas).put_(b, grad, accumulate=True), linear="together"
        ),
    )
)
put = define(
    Op(
        "put",
        _put_rule,
        Kernel(
            "put",
            _put_host,
            cuda=Routine("index.indexing:put"),
            touches=lambda launch: Touches(True, (1,), _flat_of(launch), reads=launch.params[0]),
            work=selection_work.write_rows,
        ),
        DTYPES,
        _put_samples,
        flags=("deterministic",),
        derivative=Derivative(
            lambda grad, b, params: grad if params[0] else grad.put(b, grad.new_zeros(b.shape)),
            None,
            lambda grad, b, metas: grad.take(b).reshape(metas[2].shape),
        ),
    )
)
note(put, overwrites=True)
