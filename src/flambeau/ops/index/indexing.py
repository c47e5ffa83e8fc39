"""Indexing kernels: reading and writing at positions that index tensors select.

Every writing operator is a function of the tensor that it changes. `scatter(self, index, src)` returns a new tensor;
its in-place form stores into `self`, so one operator definition serves both. A reference implementation checks every
index before it writes. An index out of range raises IndexError (or RuntimeError, as in PyTorch): immediately on the
CPU, as a device-side assertion at the next synchronization on a virtual GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, bool_, dtype, float8_e4m3fn, float8_e5m2, uint16, uint32, uint64
from flambeau.core.layout import (
    broadcast_shapes,
    contiguous_strides,
    expand_strides,
    result_strides,
    wrap_dim,
)
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine, Touches
from flambeau.ops.autocast_rules import WIDEST_ON_CUDA
from flambeau.ops.index.scattering import reduce_at, scatter_back, scatter_source_back
from flambeau.ops.index.ufunc_at import fold_at
from flambeau.ops.index_common import (
    INDEX_TYPES,
    Array,
    Params,
    by_value,
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

# -- what rules, bodies and derivatives share ----------------------------------------------------------


def _index_vector(index: Meta, name: str) -> None:
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector")
    if index.dtype not in INDEX_TYPES:
        raise RuntimeError(f"{name}(): Expected dtype int32 or int64 for index")


def _wrap_indices(index: Array, size: int, dim: int) -> Array:
    """Return non-negative indices, in the memory of `index` if it has no negative ones. Raises IndexError if out of
    range.
    """
    places = index.astype(np.intp, copy=False)
    if not places.size or (places.min() >= 0 and places.max() < size):
        return places
    bad = (places < -size) | (places >= size)
    if bad.any():
        raise IndexError(f"index {places[bad][0]} is out of bounds for dimension {dim} with size {size}")
    return np.where(places < 0, places + size, places)


def _inside(index: Array, size: int) -> Array:
    """Return indices within [0, size), in the memory of `index` if possible. Raises IndexError if out of range."""
    places = index.astype(np.intp, copy=False)
    if places.size and (int(places.min()) < 0 or int(places.max()) >= size):
        raise IndexError("index out of range in self")
    return places


def _check_elements(index: Array, size: int) -> None:
    """Raise RuntimeError for an index out of range, in the words of PyTorch's selection along dimension 1."""
    bad = index[(index < 0) | (index >= size)]
    if bad.size:
        raise RuntimeError(f"INDICES element is out of DATA bounds, id={bad[0]} axis_dim={size}")


def _match_rank(grad: Any, meta: Meta, index: Any) -> Any:
    return grad if meta.ndim else grad.reshape(index.shape)


def _list_tensors(*indices: Any) -> list[Any]:
    return [i for i in indices if i is not None]


# -- index, index_put ----------------------------------------------------------------------------------


def index_places(x: Meta, indices: Sequence[Meta], dims: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the broadcast shape of the index tensors, and its position in the result."""
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
    """Return the shape of `x[indices]`, and the strides of `x` and the indices as operands of that shape."""
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


def _selection(x: Array | Meta, indices: Sequence[Array], dims: tuple[int, ...]) -> tuple[Any, ...]:
    places: list[Any] = [slice(None)] * x.ndim
    for index, dim in zip(indices, dims, strict=True):
        places[dim] = _wrap_indices(index, x.shape[dim], dim)
    return tuple(places)


@indexes
def _index_host(launch: Launch) -> Body:
    dims = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, *indices = inputs
        outputs[0][...] = x[_selection(x, indices, dims)]

    return body


def _index_touches(launch: Launch) -> Touches:
    x, dims = tensor_at(launch, 0), launch.params[0]
    return Touches(False, tuple(range(1, len(launch.inputs))), lambda indices: _selection(x, indices, dims))


def _index_put_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, values, *indices = operands
    assert isinstance(x, Meta)
    value = by_value(values, x)
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
            value = _broadcast_values(value, shape)
    return Signature((meta_of_copy(x),), (x, value, *metas), params)


def _broadcast_values(values: Meta, shape: tuple[int, ...]) -> Meta:
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


@indexes
def _index_put_host(launch: Launch) -> Body:
    dims, accumulate = launch.params[:2]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, values, *indices = inputs
        # a copy, because the indices may share the memory of x
        places = _selection(x, [index.copy() for index in indices], dims)
        start_from(outputs[0], x)
        if accumulate:
            fold_at(np.add, outputs[0], places, np.asarray(values).astype(x.dtype))
        else:
            outputs[0][places] = values

    return body


def _index_put_touches(launch: Launch) -> Touches:
    x, (dims, accumulate) = tensor_at(launch, 0), launch.params[:2]
    indices = tuple(range(2, len(launch.inputs)))
    return Touches(True, indices, lambda indices: _selection(x, indices, dims), reads=accumulate)


def _index_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(5, 4), sample_indices(-5, 5, 3)), ((0,),)),
        ((make(2, 3, 4), sample_indices(0, 2, 6), sample_indices(0, 4, 6)), ((0, 2),)),
    ]


def _index_put_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), make(3, 4), sample_indices(0, 5, 3)), ((0,), False))]


def _index_back(grad: Any, metas: Any, params: Any, call: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    return call(index_put, (zeros_of(grad, metas), grad, *_list_tensors(b, c, d, e, f)), (params[0], True))


def _index_put_back(grad: Any, params: Any, call: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    if params[1]:
        return grad
    return call(index_put, (grad, 0.0, *_list_tensors(c, d, e, f, g)), (params[0], False))


def _index_values_back(grad: Any, params: Any, call: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    return call(index, (grad, *_list_tensors(c, d, e, f, g)), (params[0],))


index = define(
    Op(
        "index",
        _index_rule,
        Kernel(
            "index",
            _index_host,
            cuda=Routine("index.indexing:index"),
            touches=_index_touches,
            work=selection_work.read_rows,
        ),
        DTYPES,
        _index_samples,
        derivative=Derivative(_index_back, linear="together"),
    )
)
index_put = define(
    Op(
        "index_put",
        _index_put_rule,
        Kernel(
            "index_put",
            _index_put_host,
            cuda=Routine("index.indexing:index_put"),
            touches=_index_put_touches,
            work=selection_work.write_rows,
        ),
        DTYPES,
        _index_put_samples,
        flags=("deterministic",),
        derivative=Derivative(_index_put_back, _index_values_back),
        autocast=WIDEST_ON_CUDA,
    )
)
note(index_put, overwrites=True)
# -- along one dimension: index_select, index_add, index_copy, index_fill, index_reduce ----------------


def _index_select_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    where = one_device(operands, "_index_select", ("self", "index"))
    dim = wrap_dim(params[0], x.ndim)
    _index_vector(index, "index_select")
    if x.ndim == 0:
        if index.numel != 1:
            raise RuntimeError(
                f"index_select(): Index to scalar can have only 1 value, got {index.numel} value(s)"
            )
        return Signature((x,), (x, index), (dim,))
    if index.numel and not x.shape[dim]:  # nothing may be launched that would find the indices wrong
        if x.ndim == 1:
            raise IndexError("index out of range in self")
        raise RuntimeError("index_select(): self indexing axis dim should be positive")
    shape = (*x.shape[:dim], index.numel, *x.shape[dim + 1 :])
    return Signature((Meta.contiguous_of(shape, x.dtype, where),), (x, index), (dim,))


def _index_select_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = np.atleast_1d(inputs[0])
        index = inputs[1].reshape(-1)
        if dim == 1:
            _check_elements(index, x.shape[dim])
        index = _inside(index, x.shape[dim])
        np.copyto(outputs[0], x.take(index, dim).reshape(outputs[0].shape))

    return body


def _along(
    target: bool,
    reads: Callable[[Params], bool] = lambda params: False,
    wrapped: Callable[[Array, int, int], Array] = in_range,
) -> Callable[[Launch], Touches | None]:
    """Return the elements that a kernel of (x, index, ...) and params (dim, ...) accesses: slices of x along dim."""

    def touches(launch: Launch) -> Touches:
        shape, dim = tensor_at(launch, 0).shape or (1,), launch.params[0]
        return Touches(
            target,
            (1,),
            lambda indices: _slices(dim, wrapped(indices[0].reshape(-1), shape[dim], dim)),
            reads=reads(launch.params),
        )

    return touches


def _index_select_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), sample_indices(0, 4, 7)), (1,)), ((make(3), sample_indices(0, 3, 0)), (0,))]


index_select = define(
    Op(
        "index_select",
        _index_select_rule,
        Kernel(
            "index_select",
            _index_select_host,
            cuda=Routine("index.indexing:index_select"),
            touches=_along(False),
            work=selection_work.select_rows,
        ),
        DTYPES,
        _index_select_samples,
        derivative=Derivative(
            lambda grad, b, metas, params: zeros_of(grad, metas).index_add_(
                params[0], b, _match_rank(grad, metas[0], b)
            ),
            linear="together",
        ),
    )
)


def _along_rule(name: str) -> Callable[[Sequence[Operand], Params], Signature]:
    """Return the inference of index_add and index_copy, which write slices of a source to indices of one dimension."""

    def rule(operands: Sequence[Operand], params: Params) -> Signature:
        x, index, source, *more = operands
        assert isinstance(x, Meta) and isinstance(index, Meta) and isinstance(source, Meta)
        one_device([x, index, source])
        dim = wrap_dim(params[0], x.ndim)
        _index_vector(index, name)
        if name == "index_copy" and 0 != source.ndim != x.ndim != 0:
            raise IndexError(
                "index_copy_(): When source and destination are not scalars, their dimensionality must match. Source "
                f"dimensionality ({source.ndim}), destination dimensionality ({x.ndim})"
            )
        if x.dtype is not source.dtype:
            raise RuntimeError(_dtype_words(name, x.dtype.torch_name, source.dtype.torch_name))
        if name != "index_copy" and dim >= max(1, source.ndim):
            raise RuntimeError(
                f"{name}_(): Indexing dim {dim} is out of bounds of the source tensor with dim {source.ndim}"
            )
        count = source.shape[dim] if source.ndim > dim else 1
        to, of = (meta.shape[:dim] + meta.shape[dim + 1 :] for meta in (x, source))
        if name != "index_copy" and not (x.ndim and source.ndim):
            to, of = x.shape, source.shape  # as in PyTorch: without dimensions there is none to leave out
        if name == "index_copy" and to != of:
            there, here = (" ".join(map(str, shape)) for shape in (to, of))
            raise RuntimeError(
                "index_copy_(): Source/destination tensor must have same slice shapes. Destination slice shape: "
                f"{there} at dimension {dim} and source slice shape: {here} at dimension 0."
            )
        if index.numel != count:
            raise _count_error(name, index.numel, count)
        if to != of:
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. "
                f"Got self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
            )
        if name == "index_copy" or x.ndim == 1:  # as in PyTorch, which accepts the others
            refuse_empty(x, dim, index, RuntimeError if name == "index_copy" else IndexError)
        return Signature((contiguous(x),), (x, index, source, *[x.dtype] * len(more)), (dim, *params[1:]))

    return rule


def _dtype_words(name: str, to: str, of: str) -> str:
    if name == "index_copy":
        return f"{name}_(): self and source expected to have the same dtype, but got (self) {to} and (source) {of}"
    return f"{name}_(): self ({to}) and source ({of}) must have the same scalar type"


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


@indexes
def _index_add_host(launch: Launch) -> Body:
    dim = launch.params[0]
    kind = launch.outputs[0].dtype.numpy

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, index, source, alpha = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        flat = index.reshape(-1)
        places = _inside(flat, out.shape[0]) if out.ndim == 1 else in_range(flat, out.shape[dim], dim)
        start_from(outputs[0], x)
        with np.errstate(all="ignore"):
            added = source if alpha == 1 else (source * np.asarray(alpha, kind)).astype(kind)
            fold_at(np.add, out, _slices(dim, places), np.atleast_1d(added))

    return body


@indexes
def _index_copy_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index, source = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        try:
            places = in_range(index.reshape(-1), out.shape[dim], dim)
        except RuntimeError as error:
            raise IndexError(f"index_copy_(): {error}") from None
        start_from(outputs[0], x)
        out[_slices(dim, places)] = np.atleast_1d(source)

    return body


_reduce_rule = _along_rule("index_reduce")
# PyTorch's names of its kernels
_UNREDUCED = {"amax": "maximum_cpu", "amin": "minimum_cpu", "mean": "add_stub"}


def _index_reduce_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Dtypes that are only stored support only products, as in PyTorch."""
    x, index, how = operands[0], operands[1], params[1]
    assert isinstance(x, Meta) and isinstance(index, Meta)
    name = "div_floor_cpu" if x.dtype is bool_ and how == "mean" else _UNREDUCED.get(how, "")
    if how not in reductions(x.dtype):
        raise NotImplementedError(f"\"{name}\" not implemented for '{x.dtype.torch_name}'")
    signature = _reduce_rule(operands, params)
    refuse_empty(x, signature.params[0], index, IndexError)
    return signature


def reductions(kind: dtype) -> tuple[str, ...]:
    """Return the reductions that index_reduce supports for a dtype."""
    if kind in (float8_e4m3fn, float8_e5m2, uint16, uint32, uint64):
        return ("prod",)
    if kind is bool_:
        return ("prod", "amax", "amin")
    return ("prod", "mean") if kind.is_complex else ("prod", "amax", "amin", "mean")


@indexes
def _index_reduce_host(launch: Launch) -> Body:
    dim, how, include_self = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index, source = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        places = _inside(index.reshape(-1), out.shape[dim])
        start_from(outputs[0], x)
        reduce_at(out, _slices(dim, places), np.atleast_1d(source), how, include_self)

    return body


def _index_reduce_touches(launch: Launch) -> Touches | None:
    """Return the elements that PyTorch's kernels access: a mean divides the whole target."""
    _, how, include_self = launch.params
    return None if how == "mean" else _along(True, reads=lambda params: include_self)(launch)


def _index_fill_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, index, value = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    one_device([x, index])
    if index.ndim > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    if index.dtype not in INDEX_TYPES:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    dim = wrap_dim(params[0], x.ndim)
    refuse_empty(x, dim, index)
    return Signature((meta_of_copy(x),), (x, index, by_value(value, x)), (dim,))


@indexes
def _index_fill_host(launch: Launch) -> Body:
    dim = launch.params[0]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, index, value = inputs
        out = outputs[0] if outputs[0].ndim else outputs[0].reshape(1)
        places = _wrap_indices(index.flatten(), out.shape[dim], dim)
        start_from(outputs[0], x)
        out[_slices(dim, places)] = value

    return body


def _index_add_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), sample_indices(0, 5, 3), make(3, 4), 1), (0,))]


def _index_copy_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), np.array([3, 0]), make(5, 2)), (1,))]


def _index_fill_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), sample_indices(0, 4, 3), value), (1,)) for value in (1, make())]


def _index_reduce_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(5, 4), sample_indices(0, 5, 3), make(3, 4)), (0, how, include))
        for how in reductions(kind)
        for include in (True, False)
    ]


def _over_source(index: Any, source: Any, params: Params) -> Any:
    """Return a vector of indices expanded to one index for each element of the source."""
    shape = [-1 if d == params[0] % source.ndim else 1 for d in range(source.ndim)]
    return index.reshape(shape).expand(source.shape)


REAL = tuple([d for d in DTYPES if not d.is_complex])
index_add = define(
    Op(
        "index_add",
        _along_rule("index_add"),
        Kernel(
            "index_add",
            _index_add_host,
            cuda=Routine("index.indexing:index_add"),
            touches=_along(True, reads=lambda params: True),
            work=selection_work.add_rows,
        ),
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
    Op("index_copy", _along_rule("index_copy"),
       Kernel(
           "index_copy", _index_copy_host, cuda=Routine("index.indexing:index_copy"), touches=_along(True),
           work=selection_work.write_rows,
       ),
       DTYPES, _index_copy_samples, flags=("deterministic",),
       derivative=Derivative(
           lambda grad, b, params: grad.index_fill(params[0], b, 0),
           None,
           lambda grad, b, params, metas: grad.index_select(params[0], b).reshape(metas[2].shape),
       ),
)
)  # fmt: skip
note(index_copy, overwrites=True)


def _fill_value_back(grad: Any, b: Any, params: Any) -> Any:
    """Return the gradient of the fill value: the sum over the filled elements, each counted once."""
    kept = grad.new_ones(grad.shape, dtype=bool_).index_fill(params[0], b, False)
    return grad.masked_fill(kept, 0).sum()


index_fill = define(
    Op(
        "index_fill",
        _index_fill_rule,
        Kernel(
            "index_fill",
            _index_fill_host,
            cuda=Routine("index.indexing:index_fill"),
            touches=_along(True, wrapped=_wrap_indices),
            work=selection_work.fill_rows,
        ),
        DTYPES,
        _index_fill_samples,
        derivative=Derivative(
            lambda grad, b, params: grad.index_fill(params[0], b, 0),
            None,
            _fill_value_back,
        ),
    )
)
note(index_fill, overwrites=True)
index_reduce = define(
    Op(
        "index_reduce",
        _index_reduce_rule,
        Kernel(
            "index_reduce",
            _index_reduce_host,
            cuda=Routine("index.indexing:index_reduce"),
            touches=_index_reduce_touches,
            work=selection_work.add_rows,
        ),
        REAL,
        _index_reduce_samples,
        derivative=Derivative(
            lambda grad, a, b, c, out, params: scatter_back(
                grad, a, _over_source(b, c, params), c, out, params
            ),
            None,
            lambda grad, a, b, c, out, params, metas: scatter_source_back(
                grad, a, _over_source(b, c, params), c, out, params, metas
            ),
        ),
    )
)
