"""Sorting, searching and unique values. NaN is larger than every number, as in PyTorch.

Bodies sort with NumPy's stable sort; float16 and bfloat16 are compared as the float32 that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from flambeau.core.dtype import COMPLEX, bool_, dtype, int32, int64, promote_types
from flambeau.core.layout import Shape, contiguous_strides, dense_strides, wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.derivative_helpers import Refusal, by_place
from flambeau.ops.index_common import indexes
from flambeau.ops.op import (
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    common_device,
    define,
)
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import REALS
from flambeau.ops.work import row_work, workspaces

Array = np.ndarray[Any, Any]
NUMBERS = tuple(d for d in REALS if d is not bool_)


def stable_order(x: Array, axis: int, descending: bool) -> Array:
    """Return the positions of the elements in sorted order. Equal elements keep their order."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    reverse = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - reverse)


def _refuse_complex(name: str, x: Meta) -> None:
    if x.dtype.category == COMPLEX:
        raise RuntimeError(f" {name} does not support complex dtypes on {x.device.type.upper()}")


def _steps(launch: Launch) -> int:
    """Return the number of comparisons that a sort needs."""
    count = launch.operands[-1].numel
    return count * max(count, 1).bit_length()


# -- sort and topk: (values, indices) -------------------------------------------------------------------


def _sort_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    dim, descending = params
    dim = wrap_dim(dim, x.ndim)
    _refuse_complex("Sort", x)
    values = x.with_(strides=dense_strides(x.shape, x.strides))
    return Signature((values, values.with_(dtype=int64)), (x,), (dim, descending, None))


def _topk_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    k, dim, largest = params
    dim = wrap_dim(dim, x.ndim)
    if not 0 <= k <= (x.shape[dim] if x.ndim else 1):
        raise RuntimeError("selected index k out of range")
    _refuse_complex("topk", x)
    if x.dtype is bool_:
        raise RuntimeError(f"topk does not support bool dtypes on {x.device.type.upper()}")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.ndim else ()
    values = Meta.contiguous_of(shape, x.dtype, x.device)
    return Signature((values, values.with_(dtype=int64)), (x,), (dim, largest, k))


@indexes
def _sort_host(launch: Launch) -> Body:
    dim, descending, count = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    convert = to_computing(source.dtype, source.dtype)
    part = (slice(None),) * dim + (slice(count if source.ndim else 1),)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = np.atleast_1d(convert(inputs[0]))
        order = stable_order(x, dim, descending)[part]
        values, indices = outputs
        np.copyto(values, np.take_along_axis(x, order, dim).reshape(values.shape), casting="unsafe")
        indices[...] = order.reshape(indices.shape)

    return body


def _sort_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4),), (1, False)
    yield (make(3, 4),), (0, True)


def _topk_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4),), (2, 1, True)
    yield (make(3, 4),), (1, 0, False)
    yield (make(2, 9),), (3, 1, True)


sort = define(
    Op(
        "sort",
        _sort_rule,
        Kernel(
            "sort",
            _sort_host,
            _steps,
            cuda=Routine("index.sorting:sort"),
            work=row_work.sort,
            workspace=workspaces.indices_of_a_row,
        ),
        REALS,
        _sort_samples,
        derivative=Derivative(lambda grad, out1, metas, params: by_place(grad, out1, metas[0], params[0])),
    )
)
topk = define(
    Op(
        "topk",
        _topk_rule,
        Kernel(
            "topk",
            _sort_host,
            _steps,
            cuda=Routine("index.sorting:sort"),
            work=row_work.top,
            fast=HostRoutine("sorting:topk"),
        ),
        NUMBERS,
        _topk_samples,
        derivative=Derivative(lambda grad, out1, metas, params: by_place(grad, out1, metas[0], params[1])),
    )
)


# -- unique: worst-case outputs and a count -------------------------------------------------------------


def _unique_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results of unique.

    Params: dim or None, consecutive, whether to compute inverse and counts, which are empty otherwise. Outputs: values
    (with the largest possible size), inverse, counts, and the number of values.
    """
    x = operands[0]
    assert isinstance(x, Meta)
    dim, consecutive, *wanted = params
    if x.dtype.category == COMPLEX:
        raise NotImplementedError(f"\"unique\" not implemented for '{x.dtype.torch_name}'")
    if dim is None:
        shape: Shape = (x.numel,)
        many, places = x.numel, x.shape
    else:
        dim = wrap_dim(dim, x.ndim)
        if x.ndim == 0:
            raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
        if any(n == 0 for d, n in enumerate(x.shape) if d != dim):
            raise RuntimeError(
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
            )
        shape, many = x.shape, x.shape[dim]
        places = (many,)
    values = Meta.contiguous_of(shape, x.dtype, x.device)
    sizes = (places if wanted[0] else (0,)), ((many,) if wanted[1] else (0,)), ()
    inverse, counts, found = (Meta.contiguous_of(size, int64, x.device) for size in sizes)
    return Signature((values, inverse, counts, found), (x,), (dim, consecutive, *wanted))


def _unique_host(launch: Launch) -> Body:
    dim, consecutive, with_inverse, with_counts = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    convert = to_computing(source.dtype, source.dtype)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        values, inverse, counts, found = outputs
        x = convert(inputs[0])
        if dim is None:
            rows, into = x.reshape(-1, 1), values[:, None]
        else:
            moved = np.moveaxis(x, dim, 0)
            rows = moved.reshape(moved.shape[0], math.prod(moved.shape[1:]))
            into = np.moveaxis(values, dim, 0)
        order = np.arange(len(rows)) if consecutive else np.lexsort(rows.T[::-1])
        ordered = rows[order]
        first = np.ones(len(rows), bool)
        first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        group = np.cumsum(first) - 1
        count = int(np.count_nonzero(first))
        np.copyto(into[:count], ordered[first].reshape(count, *into.shape[1:]), casting="unsafe")
        into[count:] = 0  # deterministic contents, also for unread elements
        if with_inverse:
            inverse.reshape(-1)[order] = group  # reshape gives a view, because the output is contiguous
        if with_counts:
            counts[:count], counts[count:] = np.bincount(group, minlength=count), 0
        found[...] = count

    return body


def _unique_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(7, low=0, high=3),), (None, True, True, True)
    yield (make(7, low=0, high=3),), (None, False, False, True)
    yield (make(4, 2, low=0, high=2),), (1, True, False, False)
    yield (make(4, 2, low=0, high=2),), (1, False, True, True)


def _no_unique() -> Any:
    raise NotImplementedError("the derivative for '_unique2' is not implemented.")


unique = define(
    Op(
        "unique",
        _unique_rule,
        Kernel("unique", _unique_host, _steps, cuda=Routine("index.unique:unique"), work=row_work.unique),
        REALS,
        _unique_samples,
        derivative=Refusal(whole=_no_unique, name="Unique2Backward0"),
    )
)


# -- searching ------------------------------------------------------------------------------------------


def _searchsorted_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    boundaries, values, *sorter = operands
    right, narrow = params
    assert isinstance(boundaries, Meta) and isinstance(values, Meta)
    device = common_device(operands)
    kind = int32 if narrow else int64
    common = promote_types(boundaries.dtype, values.dtype)
    if boundaries.ndim != 1 and values.ndim == 0:
        raise RuntimeError(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got "
            f"boundaries tensor dim({boundaries.ndim}) and input value's dim(0) numel(1)"
        )
    if boundaries.ndim == 0:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension"
        )
    if boundaries.ndim != 1 and (
        boundaries.ndim != values.ndim or boundaries.shape[:-1] != values.shape[:-1]
    ):
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of "
            "boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(boundaries.shape)} and input value tensor {list(values.shape)}"
        )
    out = Meta.of(values.shape, contiguous_strides(values.shape), kind, device)
    rest = [x for x in sorter if isinstance(x, Meta)]
    return Signature((out,), (boundaries, values, *rest), (right, common))


@indexes
def _searchsorted_host(launch: Launch) -> Body:
    right, common = launch.params
    side: Literal["left", "right"] = "right" if right else "left"
    converts = [to_computing(common, x.dtype) for x in launch.inputs[:2] if isinstance(x, Meta)]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        boundaries, values = (convert(x) for convert, x in zip(converts, inputs, strict=False))
        if len(inputs) == 3:
            boundaries = np.take_along_axis(boundaries, inputs[2], -1)
        if boundaries.ndim == 1:
            outputs[0][...] = np.searchsorted(boundaries, values, side)
        else:
            outputs[0][...] = _bisect_rows(boundaries, values, right)

    return body


def _bisect_rows(boundaries: Array, values: Array, right: bool) -> Array:
    """Return the position of every value in its row of `boundaries`, found by bisection of all rows together."""
    low = np.zeros(values.shape, np.int64)
    high = np.full(values.shape, boundaries.shape[-1])
    for _ in range(boundaries.shape[-1].bit_length()):
        middle = (low + high) // 2
        open_ = low < high
        at = np.take_along_axis(boundaries, np.minimum(middle, boundaries.shape[-1] - 1), -1)
        after = open_ & ~(at > values if right else at >= values)
        low = np.where(after, middle + 1, low)
        high = np.where(open_ & ~after, middle, high)
    return low


def _searchsorted_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    boundaries = np.sort(make(5).astype(np.float64)).astype(make(1).dtype)
    yield (boundaries, make(3, 2)), (False, False)
    yield (boundaries, make(4)), (True, True)


searchsorted = define(
    Op(
        "searchsorted", _searchsorted_rule,
        Kernel("searchsorted", _searchsorted_host, _steps, cuda=Routine("index.searching:searchsorted")),
        NUMBERS, _searchsorted_samples, derivative=NOT_DIFFERENTIABLE,
)
)  # fmt: skip


def _isin_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    elements, tests = operands
    assert isinstance(elements, Meta) and isinstance(tests, Meta)
    common = promote_types(elements.dtype, tests.dtype)
    out = Meta.contiguous_of(elements.shape, bool_, common_device(operands))
    return Signature((out,), (elements, tests), (*params, common))


def _isin_host(launch: Launch) -> Body:
    invert, common = launch.params
    converts = [to_computing(common, x.dtype) for x in launch.inputs if isinstance(x, Meta)]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        elements, tests = (convert(x) for convert, x in zip(converts, inputs, strict=True))
        outputs[0][...] = np.isin(elements, tests, invert=invert)

    return body


isin = define(
    Op(
        "isin", _isin_rule, Kernel("isin", _isin_host, _steps, cuda=Routine("index.searching:isin")), NUMBERS,
        lambda make, kind: [((make(3, 4), make(5)), (False,))], derivative=NOT_DIFFERENTIABLE,
)
)  # fmt: skip
