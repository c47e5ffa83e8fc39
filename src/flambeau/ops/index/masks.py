"""Operators with masks: masked_fill, masked_scatter, masked_select, and the count and indices of nonzero elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, bool_, dtype, int64
from flambeau.core.layout import broadcast_shapes, expand_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Expression, Kernel, Launch, Routine, Touches
from flambeau.ops.index_common import Array, Params, by_value, fit, start_from
from flambeau.ops.linalg.matmul import c_name
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
from flambeau.ops.pointwise.dtype_promotion import ALL, REFUSED
from flambeau.ops.work import element_work


def _masked_fill_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, mask, value = operands
    assert isinstance(x, Meta) and isinstance(mask, Meta)
    where = one_device([x, mask])
    if mask.dtype is not bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {c_name(mask.dtype)}"
        )
    if x.dtype in REFUSED:
        raise NotImplementedError(f"\"masked_fill\" not implemented for '{x.dtype.torch_name}'")
    shape = broadcast_shapes([x.shape, mask.shape])
    views = [m.with_(shape, expand_strides(m.shape, m.strides, shape)) for m in (x, mask)]
    filler = by_value(value, x)
    if isinstance(filler, Meta):
        filler = filler.with_(shape, expand_strides(filler.shape, filler.strides, shape))
    return Signature((Meta.contiguous_of(shape, x.dtype, where),), (*views, filler))


def _masked_fill_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, mask, value = inputs
        start_from(outputs[0], x)
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
    return Signature((Meta.contiguous_of(shape, x.dtype, where),), (*views, source))


def _masked_scatter_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, mask, source = inputs
        count = int(np.count_nonzero(mask))
        if count > source.size:
            raise RuntimeError("Number of elements of source < number of ones in mask")
        start_from(outputs[0], x)
        outputs[0][mask] = source.reshape(-1)[:count]

    return body


TILE = 8192  # elements; a second launch starts from the counts before each tile


def _count_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Results: how many elements are not zero; how many of them precede each tile, in row-major
    order.
    """
    x = operands[0]
    assert isinstance(x, Meta)
    tiles = max(1, -(-x.numel // TILE))
    counts = [Meta.contiguous_of(shape, int64, x.device) for shape in ((), (tiles,))]
    return Signature(tuple(counts), (x,), (TILE,))


def _count_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        total, before = outputs
        ends = np.arange(TILE, TILE * len(before), TILE)
        total[...] = np.count_nonzero(inputs[0])
        before[0] = 0
        for tile, part in enumerate(np.split(np.ravel(inputs[0]), ends)[:-1]):
            before[tile + 1] = before[tile] + np.count_nonzero(part)

    return body


def _nonzero_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Inputs: x and the second result of `nonzero_count`; params: its first, which the host
    waited for.
    """
    x, count = operands[0], params[0]
    assert isinstance(x, Meta)
    out = Meta.of((count, x.ndim), (1, count), int64, x.device)
    return Signature((out,), tuple([m for m in operands if isinstance(m, Meta)]), params)


def _nonzero_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        fit(launch, outputs[0], np.argwhere(inputs[0] != 0))

    return body


def _select_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results of selection by a mask.

    Inputs: x, a mask of its shape, and the second result of `nonzero_count` of the mask. Params: the first result of
    `nonzero_count`, and whether the program wrote x[mask], which only affects the node's name.
    """
    x, mask, _ = metas = [m for m in operands if isinstance(m, Meta)]
    if mask.shape != x.shape:
        raise RuntimeError(
            f"masked_select: a mask of shape {list(mask.shape)} for a tensor of {list(x.shape)}"
        )
    return Signature((Meta.contiguous_of(params[:1], x.dtype, one_device(metas)),), tuple(metas), params[:1])


def _select_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, mask, _ = inputs
        fit(launch, outputs[0], x[mask])

    return body


def _touches_of_mask(launch: Launch) -> Touches:
    """Return the elements that PyTorch's kernels access: all are loaded, and stored again where the mask is False."""
    return Touches(True, (1,), lambda masks: np.atleast_1d(masks[0]), rewrites=True)


def _masked_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    mask = np.array([True, False, True, True])
    return [((make(5, 4), mask, 1), ()), ((make(5, 4), mask, make()), ()), ((make(), np.array(True), 1), ())]


def _masked_scatter_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4), np.array([True, False, True, True]), make(20)), ())]


def _count_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(5, 4),), ()), ((make(0),), ())]


def _nonzero_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    x = make(5, 4)
    return [((x, np.zeros(1, np.int64)), (int(np.count_nonzero(x)),))]


def _select_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    mask = np.arange(20).reshape(5, 4) % 3 == 0
    return [((make(5, 4), mask, np.zeros(1, np.int64)), (7, False))]


_MASKED_FILL = Expression(
    "b ? c : a",
    lambda launch: (((), (), () if isinstance(launch.inputs[2], Meta) else (launch.outputs[0].dtype,)), ()),
)
masked_fill = define(
    Op(
        "masked_fill",
        _masked_fill_rule,
        Kernel(
            "masked_fill",
            _masked_fill_host,
            cuda=_MASKED_FILL,
            touches=_touches_of_mask,
            work=element_work.copy_and_change,
        ),
        ALL,
        _masked_samples,
        derivative=Derivative(
            lambda grad, b: grad.masked_fill(b, 0), None, lambda grad, b: grad.masked_fill(~b, 0)
        ),
    )
)


def _masked_source_back(grad: Any, b: Any, metas: Any) -> Any:
    """Return the source's gradient: its first elements went to the masked elements, and the others were not used."""
    source = metas[2]
    taken = grad.masked_select(b)
    whole = grad.new_zeros((source.numel,))
    whole[: taken.numel()] = taken
    return whole.reshape(source.shape)


masked_scatter = define(
    Op("masked_scatter", _masked_scatter_rule,
       Kernel("masked_scatter", _masked_scatter_host, cuda=Routine("index.joining:masked_scatter"),
              touches=_touches_of_mask),
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
        Kernel("nonzero_count", _count_host, cuda=Routine("index.joining:nonzero_count")),
        DTYPES,
        _count_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
note(nonzero_count, "nonzero")
nonzero = define(
    Op(
        "nonzero",
        _nonzero_rule,
        Kernel("nonzero", _nonzero_host, cuda=Routine("index.joining:nonzero")),
        DTYPES,
        _nonzero_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
masked_select = define(
    Op(
        "masked_select",
        _select_rule,
        Kernel(
            "masked_select",
            _select_host,
            cuda=Routine("index.joining:masked_select"),
            touches=lambda launch: Touches(False, (1,), lambda masks: np.atleast_1d(masks[0])),
        ),
        DTYPES,
        _select_samples,
        derivative=Derivative(
            lambda grad, b, metas: grad.new_zeros(metas[0].shape).masked_scatter_(b, grad),
            None,
            None,
            name=lambda x, params: "IndexBackward0" if params[1] else "MaskedSelectBackward0",
        ),
    )
)
