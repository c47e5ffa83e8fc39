"""Indexing kernels: reading and writing at places that tensors name.

Every writing operator is a function of the tensor that it changes: `scatter(self, index, src)` gives a new
tensor, and its in-place form stores into `self`, so that one record serves both. A body checks every
index before it writes; an index out of range raises IndexError (or RuntimeError, as PyTorch does): at once
on the CPU, as a device-side assertion at the next synchronization on a virtual GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core import errors
from flambeau.core.device import CPU, device
from flambeau.core.dtype import DTYPES, bool_, dtype, int32, int64
from flambeau.core.layout import (
    broadcast_shapes,
    contiguous_strides,
    dense_strides,
    expand_strides,
    numel,
    result_strides,
    wrap_dim,
)
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Expression, Kernel, Launch, Routine
from flambeau.ops.folding import fold_at
from flambeau.ops.op import NOT_DIFFERENTIABLE, Derivative, Make, Op, Operand, Sample, Signature, define

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]
INDEX_TYPES = (int64, int32)


# -- what rules share ----------------------------------------------------------------------------------


def one_device(operands: Sequence[Operand]) -> device:
    """The device of all tensors. Raises RuntimeError where they differ: indices do not travel."""
    metas = [x for x in operands if isinstance(x, Meta)]
    for meta in metas[1:]:
        if meta.device is not metas[0].device:
            raise RuntimeError(errors.devices_differ(metas[0].device, meta.device))
    return metas[0].device


def _value(x: Operand, like: Meta) -> Meta | dtype:
    """A value operand: by value if it is a Python scalar or a 0-dim CPU tensor beside CUDA tensors."""
    if isinstance(x, Meta) and not (x.ndim == 0 and x.device is CPU):
        return x
    return like.dtype


def _changed(meta: Meta) -> Meta:
    """The meta of a changed copy of a tensor."""
    return meta.with_(strides=dense_strides(meta.shape, meta.strides))


def _index_vector(index: Meta, name: str) -> None:
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector")
    if index.dtype not in INDEX_TYPES:
        raise RuntimeError(f"{name}(): Expected dtype int32 or int64 for index")


# -- what bodies share ---------------------------------------------------------------------------------


def _start(out: Array, x: Array) -> None:
    """Begin with the tensor that is changed; in place it is there already."""
    if not np.may_share_memory(out, x):
        np.copyto(out, x)


def _wrapped(index: Array, size: int, dim: int) -> Array:
    """Indices counted from the front, the memory of `index` itself where it has them. Raises IndexError for one out of
    range."""
    places = index.astype(np.intp, copy=False)
    if not places.size or (places.min() >= 0 and places.max() < size):
        return places
    bad = (places < -size) | (places >= size)
    if bad.any():
        raise IndexError(f"index {places[bad][0]} is out of bounds for dimension {dim} with size {size}")
    return np.where(places < 0, places + size, places)


def _checked(index: Array, size: int, dim: int) -> Array:
    """Indices that must be in [0, size). Raises RuntimeError for one out of range."""
    places = index.astype(np.intp)
    if places.size and (places.min() < 0 or places.max() >= size):
        bad = (places < 0) | (places >= size)
        raise RuntimeError(f"index {places[bad][0]} is out of bounds for dimension {dim} with size {size}")
    return places


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    """Where `index` points along `dim`, and each element's own place along the other dimensions."""
    places = list(np.ogrid[tuple([slice(n) for n in index.shape])])
    places[dim] = index
    return tuple(places)


def _integers(low: int, high: int, *shape: int) -> Array:
    """Sample indices: deterministic, some of them repeated."""
    return (low + np.arange(numel(shape)) * 7 % (high - low)).reshape(shape).astype(np.int64)


# -- what derivatives share ----------------------------------------------------------------------------


def _zeros(grad: Any, metas: Sequence[Any]) -> Any:
    """Zeros where the indexed tensor is, to put the gradient in."""
    return grad.new_zeros(metas[0].shape)


def _grown(grad: Any, meta: Meta, index: Any) -> Any:
    return grad if meta.ndim else grad.reshape(index.shape)


def _listed(*indices: Any) -> list[Any]:
    return [i for i in indices if i is not None]


# -- index, index_put ----------------------------------------------------------------------------------


def index_places(x: Meta, indices: Sequence[Meta], dims: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The broadcast shape of the index tensors, and where it stands in the result: in the place of the
    indexed dimensions if these are adjacent, else in front."""
    try:
        shape = broadcast_shapes([i.shape for i in indices])
    except RuntimeError:
        shapes = ", ".join(str(list(i.shape)) for i in indices)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    for i in indices:
        if i.dtype not in INDEX_TYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    adjacent = dims[-1] - dims[0] == len(dims) - 1
    return shape, dims[0] if adjacent else 0


def _index_result(x: Meta, indices: Sequence[Meta], dims: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """The shape of `x[indices]`, and the strides of `x` and the indices as operands of that shape."""
    shape, at = index_places(x, indices, dims)
    kept = [d for d in range(x.ndim) if d not in dims]
    head, tail = kept[:at], kept[at:]
    full = (*[x.shape[d] for d in head], *shape, *[x.shape[d] for d in tail])
    source = (*[x.strides[d] for d in head], *[0] * len(shape), *[x.strides[d] for d in tail])
    operands = [source]
    for i in indices:
        inner = expand_strides(i.shape, contiguous_strides(i.shape), shape)
        operands.append((*[0] * len(head), *inner, *[0] * len(tail)))
    return full, operands


def _index_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, *indices = operands
    assert isinstance(x, Meta)
    where = one_device(operands)
    metas = [i for i in indices if isinstance(i, Meta)]
    shape, strides = _index_result(x, metas, params[0])
    if any(x.shape[d] == 0 for d in params[0]) and all(i.numel for i in metas):
        raise IndexError("index is out of bounds for dimension with size 0")
    out = Meta.of(shape, result_strides(shape, *strides), x.dtype, where)
    return Signature((out,), (x, *metas), params)


def _selection(x: Array, indices: Sequence[Array], dims: tuple[int, ...]) -> tuple[Any, ...]:
    places: list[Any] = [slice(None)] * x.ndim
    for index, dim in zip(indices, dims, strict=True):
        places[dim] = _wrapped(index, x.shape[dim], dim)
    return tuple(places)


def _index_host(launch: Launch) -> Body:
    dims = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, *indices = inputs
        outputs[0][...] = x[_selection(x, indices, dims)]

    return body


def _index_put_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, values, *indices = operands
    assert isinstance(x, Meta)
    value = _value(values, x)
    one_device([x, *([value] if isinstance(value, Meta) else []), *indices])
    metas = [i for i in indices if isinstance(i, Meta)]
    shape, _ = _index_result(x, metas, params[0])
    if any(x.shape[d] == 0 for d in params[0]) and all(i.numel for i in metas):
        raise IndexError("index is out of bounds for dimension with size 0")
    if isinstance(values, Meta):
        if values.dtype is not x.dtype:
            raise RuntimeError(
                "Index put requires the source and destination dtypes match, got "
                f"{x.dtype.torch_name} for the destination and {values.dtype.torch_name} for the source."
            )
        if isinstance(value, Meta):
            value = _fitted(value, shape)
    return Signature((_changed(x),), (x, value, *metas), params)


def _fitted(values: Meta, shape: tuple[int, ...]) -> Meta:
    try:
        fits = broadcast_shapes([shape, values.shape]) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing "
            f"result of shape {list(shape)}"
        )
    return values.with_(shape, expand_strides(values.shape, values.strides, shape))


def _index_put_host(launch: Launch) -> Body:
    dims, accumulate = launch.params[:2]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, values, *indices = inputs
        places = _selection(x, [index.copy() for index in indices], dims)  # they may lie in x
        _start(outputs[0], x)
        if accumulate:
            fold_at(np.add, outputs[0], places, np.asarray(values).astype(x.dtype))
        else:
            outputs[0][places] = values

    return body


def _index_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(5, 4), _integers(-5, 5, 3)), ((0,),)),
        ((make(2, 3, 4), _integers(0, 2, 6), _integers(0, 4, 6)), ((0, 2),)),
    ]


def _index_put_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), make(3, 4), _integers(0, 5, 3)), ((0,), False))]


def _index_back(grad: Any, metas: Any, params: Any, call: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    return call(index_put, (_zeros(grad, metas), grad, *_listed(b, c, d, e, f)), (params[0], True))


def _index_put_back(grad: Any, params: Any, call: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    if params[1]:
        return grad
    return call(index_put, (grad, 0.0, *_listed(c, d, e, f, g)), (params[0], False))


def _index_values_back(grad: Any, params: Any, call: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    return call(index, (grad, *_listed(c, d, e, f, g)), (params[0],))


index = define(
    Op(
        "index",
        _index_rule,
        Kernel("index", _index_host, cuda=Routine("index")),
        DTYPES,
        _index_samples,
        derivative=Derivative(_index_back),
    )
)
index_put = define(
    Op(
        "index_put",
        _index_put_rule,
        Kernel("index_put", _index_put_host, cuda=Routine("index_put")),
        DTYPES,
        _index_put_samples,
        flags=("deterministic",),
        derivative=Derivative(_index_put_back, _index_values_back),
    )
)


# -- along one dimension: index_select, index_add, index_copy, index_fill ------------------------------


def _index_select_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    where, dim = one_device(operands), wrap_dim(params[0], x.ndim)
    _index_vector(index, "index_select")
    if x.ndim == 0:
        if index.numel != 1:
            raise RuntimeError(
                f"index_select(): Index to scalar can have only 1 value, got {index.numel} value(s)"
            )
        return Signature((x,), (x, index), (dim,))
    shape = (*x.shape[:dim], index.numel, *x.shape[dim + 1 :])
    return Signature((Meta.contiguous_of(shape, x.dtype, where),), (x, index), (dim,))


def _index_select_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index = np.atleast_1d(inputs[0]), inputs[1].reshape(-1)
        if index.size and (int(index.min()) < 0 or int(index.max()) >= x.shape[dim]):
            raise IndexError("index out of range in self")
        np.copyto(outputs[0], x.take(index, dim).reshape(outputs[0].shape))

    return body


def _index_select_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), _integers(0, 4, 7)), (1,)), ((make(3), _integers(0, 3, 0)), (0,))]


index_select = define(
    Op("index_select", _index_select_rule,
       Kernel("index_select", _index_select_host, cuda=Routine("index_select")), DTYPES, _index_select_samples,
       derivative=Derivative(
           lambda grad, b, metas, params: _zeros(grad, metas).index_add(params[0], b, _grown(grad, metas[0], b)),
       ),
)
)  # fmt: skip


def _along_rule(name: str) -> Callable[[Sequence[Operand], Params], Signature]:
    """The rule of index_add, index_copy: slices of a source go to indices of one dimension."""

    def rule(operands: Sequence[Operand], params: Params) -> Signature:
        x, index, source, *more = operands
        assert isinstance(x, Meta) and isinstance(index, Meta) and isinstance(source, Meta)
        one_device([x, index, source])
        dim = wrap_dim(params[0], x.ndim)
        _index_vector(index, name)
        if x.dtype is not source.dtype:
            raise RuntimeError(
                f"{name}_(): self and source expected to have the same dtype, but got (self) "
                f"{x.dtype.torch_name} and (source) {source.dtype.torch_name}"
            )
        count = source.shape[dim] if source.ndim > dim else 1
        if index.numel != count:
            raise _count_error(name, index.numel, count)
        if x.shape[:dim] + x.shape[dim + 1 :] != source.shape[:dim] + source.shape[dim + 1 :]:
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. "
                f"Got self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
            )
        return Signature((_changed(x),), (x, index, source, *[x.dtype] * len(more)), (dim, *params[1:]))

    return rule


def _count_error(name: str, indices: int, count: int) -> Exception:
    if name == "index_copy":
        return IndexError(
            f"index_copy_(): Number of indices ({indices}) should be equal to source.size(dim) ({count})"
        )
    return RuntimeError(
        f"{name}_(): Number of indices ({indices}) should be equal to source.size(dim): ({count}), for dim: 0"
    )


def _slices(dim: int, places: Array) -> tuple[Any, ...]:
    return (*[slice(None)] * dim, places)


def _index_add_host(launch: Launch) -> Body:
    dim = launch.params[0]
    kind = launch.outputs[0].dtype.numpy

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, index, source, alpha = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        places = _checked(index.reshape(-1), out.shape[dim], dim)
        _start(outputs[0], x)
        with np.errstate(all="ignore"):
            added = source if alpha == 1 else (source * np.asarray(alpha, kind)).astype(kind)
            fold_at(np.add, out, _slices(dim, places), np.atleast_1d(added))

    return body


def _index_copy_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index, source = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        places = _wrapped(index.flatten(), out.shape[dim], dim)
        _start(outputs[0], x)
        out[_slices(dim, places)] = np.atleast_1d(source)

    return body


_REDUCE_AT: dict[str, Any] = {
    "sum": np.add, "add": np.add, "mean": np.add, "prod": np.multiply, "multiply": np.multiply,
    "amax": np.maximum, "amin": np.minimum,
}  # fmt: skip


def _reduce_at(out: Array, places: Any, source: Any, how: str, include_self: bool) -> None:
    """`out[places] (how)= source`, with repeated places; without its own elements if not `include_self`."""
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


def _index_reduce_host(launch: Launch) -> Body:
    dim, how, include_self = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index, source = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        places = _wrapped(index.flatten(), out.shape[dim], dim)
        _start(outputs[0], x)
        _reduce_at(out, _slices(dim, places), np.atleast_1d(source), how, include_self)

    return body


def _index_fill_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index, value = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    one_device([x, index])
    _index_vector(index, "index_fill_")
    return Signature((_changed(x),), (x, index, _value(value, x)), (wrap_dim(params[0], x.ndim),))


def _index_fill_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, index, value = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        places = _wrapped(index.flatten(), out.shape[dim], dim)
        _start(outputs[0], x)
        out[_slices(dim, places)] = value

    return body


def _index_add_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), _integers(0, 5, 3), make(3, 4), 1), (0,))]


def _index_copy_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), np.array([3, 0]), make(5, 2)), (1,))]


def _index_fill_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), _integers(0, 4, 3), 1), (1,))]


def _index_reduce_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(5, 4), _integers(0, 5, 3), make(3, 4)), (0, how, include))
        for how in ("prod", "amax", "amin", "mean")
        for include in (True, False)
    ]


def _over_source(index: Any, source: Any, params: Params) -> Any:
    """A vector of indices as an index for each element of the source."""
    shape = [-1 if d == params[0] % source.ndim else 1 for d in range(source.ndim)]
    return index.reshape(shape).expand(source.shape)


REAL = tuple([d for d in DTYPES if not d.is_complex])

index_add = define(
    Op(
        "index_add",
        _along_rule("index_add"),
        Kernel("index_add", _index_add_host, cuda=Routine("index_add")),
        DTYPES,
        _index_add_samples,
        derivative=Derivative(
            lambda grad: grad,
            None,
            lambda grad, b, d, params, metas: grad.index_select(params[0], b).reshape(metas[2].shape) * d,
        ),
    )
)
index_copy = define(
    Op("index_copy", _along_rule("index_copy"), Kernel("index_copy", _index_copy_host, cuda=Routine("index_copy")),
       DTYPES, _index_copy_samples, flags=("deterministic",),
       derivative=Derivative(
           lambda grad, b, params: grad.index_fill(params[0], b, 0),
           None,
           lambda grad, b, params, metas: grad.index_select(params[0], b).reshape(metas[2].shape),
       ),
)
)  # fmt: skip
index_fill = define(
    Op(
        "index_fill",
        _index_fill_rule,
        Kernel("index_fill", _index_fill_host, cuda=Routine("index_fill")),
        DTYPES,
        _index_fill_samples,
        derivative=Derivative(
            lambda grad, b, params: grad.index_fill(params[0], b, 0),
            None,
            lambda grad, b, params: grad.index_select(params[0], b).sum(),
        ),
    )
)
index_reduce = define(
    Op("index_reduce", _along_rule("index_reduce"),
       Kernel("index_reduce", _index_reduce_host, cuda=Routine("index_reduce")),
       REAL, _index_reduce_samples,
       derivative=Derivative(
           lambda grad, a, b, c, out, params: _scatter_back(grad, a, _over_source(b, c, params), c, out, params),
           None,
           lambda grad, a, b, c, out, params, metas: _scatter_source_back(
               grad, a, _over_source(b, c, params), c, out, params, metas
           ),
       ))
)  # fmt: skip


# -- element by element along one dimension: gather, scatter -------------------------------------------


def _check_grid(index: Meta, x: Meta, dim: int, name: str, other: str, apart: bool = True) -> None:
    """`index` must not be larger than `x` in any dimension, `dim` aside if `apart`."""
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
    where, dim = one_device(operands), wrap_dim(params[0], x.ndim)
    if index.dtype not in INDEX_TYPES:
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    if index.numel:
        _check_grid(index, x, dim, "self", "input")
    return Signature((Meta.contiguous_of(index.shape, x.dtype, where),), (x, index), (dim,))


def _gather_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index = np.atleast_1d(inputs[0]), np.atleast_1d(inputs[1])
        found = x[_grid(_checked(index, x.shape[dim], dim), dim)]
        np.copyto(outputs[0], found.reshape(outputs[0].shape))

    return body


def _gather_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), _integers(0, 5, 3, 2)), (0,)), ((make(5, 4), _integers(0, 4, 5, 6)), (1,))]


gather = define(
    Op(
        "gather",
        _gather_rule,
        Kernel("gather", _gather_host, cuda=Routine("gather")),
        DTYPES,
        _gather_samples,
        derivative=Derivative(
            lambda grad, b, metas, params: _zeros(grad, metas).scatter_add(params[0], b, grad)
        ),
    )
)


def _scatter_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """params: dim, how ("" assigns), include_self, the function's name, whether the order of writes is fixed."""
    x, index, source = operands
    dim, how, include_self, name, fixed = params
    assert isinstance(x, Meta) and isinstance(index, Meta)
    one_device([x, index, *([source] if isinstance(source, Meta) else [])])
    dim = wrap_dim(dim, x.ndim)
    if index.dtype not in INDEX_TYPES:
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index")
    if index.numel:
        _check_grid(index, x, dim, "self", "self")
        if isinstance(source, Meta):
            _check_grid(index, source, dim, "src", "src", apart=False)
    if isinstance(source, Meta) and source.dtype is not x.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    value = source if isinstance(source, Meta) else x.dtype
    return Signature((_changed(x),), (x, index, value), (dim, how, include_self, fixed))


def _scatter_host(launch: Launch) -> Body:
    dim, how, include_self = launch.params[:3]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, index, source = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        index = np.atleast_1d(index)
        places = _grid(_checked(index, out.shape[dim], dim), dim)
        if isinstance(source, np.ndarray):
            source = np.atleast_1d(source)[tuple([slice(n) for n in index.shape])]
        else:
            source = np.asarray(source).astype(out.dtype)
        _start(outputs[0], x)
        if how:
            _reduce_at(out, places, source, how, include_self)
        else:
            out[places] = source

    return body


def _scatter_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    index = np.array([[0, 2, 1, 4], [3, 0, 0, 1]])
    return [((make(5, 4), index, make(3, 4)), (0, how, True, "scatter")) for how in ("", "sum")]


def _scatter_back(grad: Any, a: Any, b: Any, c: Any, out: Any, params: Any) -> Any:
    dim, how, include_self = params[:3]
    if how == "mean":
        given = grad / _share_of_mean(grad, b, dim, include_self)
    elif how in ("amax", "amin"):
        given = (a == out) * (grad / _share_of_extreme(a, b, c, out, params))
    elif how == "prod":
        given = (grad * out).masked_fill(a == 0, 0) / a.masked_fill(a == 0, 1)
    else:
        given = grad
    return given if how and include_self else given.scatter(dim, b, 0)


def _scatter_source_back(grad: Any, a: Any, b: Any, c: Any, out: Any, params: Any, metas: Any) -> Any:
    dim, how, include_self = params[:3]
    if how == "mean":
        grad = grad / _share_of_mean(grad, b, dim, include_self)
    elif how in ("amax", "amin"):
        share = grad / _share_of_extreme(a, b, c, out, params)
        part = _as_source(b, c)
        return _to_source((part == out.gather(dim, b)) * share.gather(dim, b), metas[2])
    elif how == "prod":
        part = _as_source(b, c)
        return _to_source(
            (grad * out).gather(dim, b).masked_fill(part == 0, 0) / part.masked_fill(part == 0, 1), metas[2]
        )
    return _to_source(grad.gather(dim, b), metas[2])


def _share_of_mean(grad: Any, index: Any, dim: int, include_self: bool) -> Any:
    counts = grad.new_ones(grad.shape) if include_self else grad.new_zeros(grad.shape)
    return counts.scatter_add(dim, index, grad.new_ones(index.shape)).clamp(min=1)


def _share_of_extreme(a: Any, index: Any, source: Any, out: Any, params: Any) -> Any:
    """How many elements are the extreme: they share the gradient."""
    dim, _, include_self = params[:3]
    own = (a == out).to(out.dtype)
    own = own if include_self else own.scatter(dim, index, 0)
    given = (_as_source(index, source) == out.gather(dim, index)).to(out.dtype)
    return own.scatter_add(dim, index, given).clamp(min=1)


def _as_source(index: Any, source: Any) -> Any:
    """The part of the source that the index reaches."""
    for dim, size in enumerate(index.shape):
        source = source.narrow(dim, 0, size)
    return source


def _to_source(grad: Any, meta: Any) -> Any:
    """The gradient of the whole source: zero beyond the index."""
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


scatter = define(
    Op(
        "scatter",
        _scatter_rule,
        Kernel("scatter", _scatter_host, cuda=Routine("scatter")),
        DTYPES,
        _scatter_samples,
        flags=("deterministic",),
        derivative=Derivative(_scatter_back, None, _scatter_source_back),
    )
)


# -- over all elements: take, put ----------------------------------------------------------------------


def _flat_places(index: Array, count: int) -> Array:
    places = index.astype(np.intp)
    bad = (places < -count) | (places >= count)
    if bad.any():
        raise IndexError(
            f"out of range: tried to access index {places[bad][0]} on a tensor of {count} elements."
        )
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
    return Signature((_changed(x),), (x, index, source), params)


def _put_host(launch: Launch) -> Body:
    accumulate = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index, source = inputs
        out = outputs[0]
        places = np.unravel_index(_flat_places(index, x.size).reshape(-1) % x.size, out.shape)
        _start(out, x)
        if accumulate:
            fold_at(np.add, out, places, source.reshape(-1))
        else:
            out[places] = source.reshape(-1)

    return body


def _take_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), _integers(-20, 20, 3, 2)), ())]


def _put_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), np.array([3, -1]), make(2)), (accumulate,)) for accumulate in (False, True)]


take = define(
    Op(
        "take",
        _take_rule,
        Kernel("take", _take_host, cuda=Routine("take")),
        DTYPES,
        _take_samples,
        derivative=Derivative(lambda grad, b, metas: _zeros(grad, metas).put(b, grad, accumulate=True)),
    )
)
put = define(
    Op(
        "put",
        _put_rule,
        Kernel("put", _put_host, cuda=Routine("put")),
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


# -- masks ---------------------------------------------------------------------------------------------


def _masked_fill_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, mask, value = operands
    assert isinstance(x, Meta) and isinstance(mask, Meta)
    where = one_device([x, mask])
    if mask.dtype is not bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype.name}"
        )
    shape = broadcast_shapes([x.shape, mask.shape])
    views = [m.with_(shape, expand_strides(m.shape, m.strides, shape)) for m in (x, mask)]
    strides = dense_strides(shape, views[0].strides)
    return Signature((Meta.of(shape, strides, x.dtype, where),), (*views, _value(value, x)))


def _masked_fill_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, mask, value = inputs
        _start(outputs[0], x)
        np.copyto(outputs[0], np.asarray(value).astype(x.dtype), where=mask)

    return body


def _masked_scatter_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, mask, source = operands
    assert isinstance(x, Meta) and isinstance(mask, Meta) and isinstance(source, Meta)
    where = one_device(operands)
    if x.dtype is not source.dtype:
        raise RuntimeError(
            f"masked_scatter_: expected self and source to have same dtypes but got {x.dtype.torch_name} and "
            f"{source.dtype.torch_name}"
        )
    if mask.dtype is not bool_:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype.torch_name}"
        )
    shape = broadcast_shapes([x.shape, mask.shape])
    views = [m.with_(shape, expand_strides(m.shape, m.strides, shape)) for m in (x, mask)]
    strides = dense_strides(shape, views[0].strides)
    return Signature((Meta.of(shape, strides, x.dtype, where),), (*views, source))


def _masked_scatter_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, mask, source = inputs
        count = int(np.count_nonzero(mask))
        if count > source.size:
            raise RuntimeError("Number of elements of source < number of ones in mask")
        _start(outputs[0], x)
        outputs[0][mask] = source.reshape(-1)[:count]

    return body


def _count_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    return Signature((Meta.contiguous_of((), int64, x.device),), (x,))


def _count_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        outputs[0][...] = np.count_nonzero(inputs[0] != 0)

    return body


def _nonzero_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """params: how many there are; the host had to ask the device for that."""
    x, count = operands[0], params[0]
    assert isinstance(x, Meta)
    return Signature((Meta.of((count, x.ndim), (1, count), int64, x.device),), (x,), params)


def _nonzero_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        outputs[0][...] = np.argwhere(inputs[0] != 0)

    return body


def _masked_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    mask = np.array([True, False, True, True])
    return [((make(5, 4), mask, 1), ()), ((make(), np.array(True), 1), ())]


def _masked_scatter_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), np.array([True, False, True, True]), make(20)), ())]


def _count_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4),), ()), ((make(0),), ())]


def _nonzero_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    x = make(5, 4)
    return [((x,), (int(np.count_nonzero(x)),))]


_MASKED_FILL = Expression(
    "b ? c : a",
    lambda launch: (((), (), () if isinstance(launch.inputs[2], Meta) else (launch.outputs[0].dtype,)), ()),
)
masked_fill = define(
    Op(
        "masked_fill",
        _masked_fill_rule,
        Kernel("masked_fill", _masked_fill_host, cuda=_MASKED_FILL),
        DTYPES,
        _masked_samples,
        derivative=Derivative(
            lambda grad, b: grad.masked_fill(b, 0), None, lambda grad, b: grad.masked_fill(~b, 0)
        ),
    )
)


def _masked_source_back(grad: Any, b: Any, metas: Any) -> Any:
    """The first elements of the source went to the mask's places; the others nowhere."""
    source = metas[2]
    taken = grad.masked_select(b)
    whole = grad.new_zeros((source.numel,))
    whole[: taken.numel()] = taken
    return whole.reshape(source.shape)


masked_scatter = define(
    Op("masked_scatter", _masked_scatter_rule,
       Kernel("masked_scatter", _masked_scatter_host, cuda=Routine("masked_scatter")),
       DTYPES, _masked_scatter_samples,
       derivative=Derivative(
           lambda grad, b: grad.masked_fill(b, 0),
           None,
           _masked_source_back,
       ),
)
)  # fmt: skip
nonzero_count = define(
    Op(
        "nonzero_count",
        _count_rule,
        Kernel("nonzero_count", _count_host, cuda=Routine("nonzero_count")),
        DTYPES,
        _count_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
nonzero = define(
    Op(
        "nonzero",
        _nonzero_rule,
        Kernel("nonzero", _nonzero_host, cuda=Routine("nonzero")),
        DTYPES,
        _nonzero_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
