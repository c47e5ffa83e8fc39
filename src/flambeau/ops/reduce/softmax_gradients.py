"""The gradients of softmax and log_softmax, one kernel each: inputs grad and the result; params (dim,)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.layout import expand_strides, wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Expression, Fold, Kernel, Launch, Routine
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
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, wide
from flambeau.ops.work import row_work, workspaces

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    grad, out = operands
    assert isinstance(grad, Meta) and isinstance(out, Meta)
    where = one_device(operands)
    if grad.shape != out.shape or grad.dtype is not out.dtype:
        raise RuntimeError(
            f"softmax_backward: expected a gradient of shape {list(out.shape)} and dtype {out.dtype}, but got "
            f"{list(grad.shape)} and {grad.dtype}"
        )
    made = Meta.contiguous_of(out.shape, out.dtype, where)
    return Signature((made,), (grad, out), (wrap_dim(params[0], out.ndim),))


def _host_of(rows: Callable[[Array, Array], Array]) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        (axis,), kind = launch.params, launch.outputs[0].dtype
        widen = to_computing(kind, kind)

        def lasting(x: Array) -> Array:
            """Move the dimension to the end, because sums are pairwise along memory only."""
            return np.ascontiguousarray(np.moveaxis(np.atleast_1d(widen(x)), axis, -1))

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            found = np.moveaxis(rows(*map(lasting, inputs)), -1, axis)
            np.copyto(outputs[0], found.reshape(outputs[0].shape), casting="unsafe")

        return body

    return host


def _softmax_rows(grad: Array, out: Array) -> Array:
    weighted = grad * out
    weighted -= out * np.add.reduce(weighted, axis=-1, keepdims=True)
    return weighted


def _log_softmax_rows(grad: Array, out: Array) -> Array:
    shares = np.exp(out)
    shares *= np.add.reduce(grad, axis=-1, keepdims=True)
    return np.asarray(grad - shares)


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for shape, dim in (((3, 5), 1), ((2, 3, 4), 0), ((2, 3, 4), -2)):
        yield (make(*shape), make(*shape)), (dim,)


def _define(name: str, rows: Callable[[Array, Array], Array], derivative: Derivative) -> Op:
    kernel = Kernel(
        name,
        _host_of(rows),
        lambda launch: 8 * launch.outputs[0].numel,
        cuda=Routine(f"nn.softmax:{name}", row_dims=lambda launch: launch.params[:1]),
        work=row_work.softmax_gradient,
        workspace=workspaces.one_result if name == "softmax_backward" else workspaces.nothing,
    )
    return define(Op(name, _rule, kernel, FLOATS, _samples, derivative=derivative))


# The gradient of out * (grad - sum(grad * out)) as a function of two tensors.
def _softmax_grad(grad: Any, b: Any, params: Any) -> Any:
    return b * (grad - (grad * b).sum(params[0], True))


def _softmax_out(grad: Any, a: Any, b: Any, params: Any) -> Any:
    dim = params[0]
    return grad * (a - (a * b).sum(dim, True)) - a * (grad * b).sum(dim, True)


# The gradient of grad - exp(out) * sum(grad).
def _log_softmax_grad(grad: Any, b: Any, params: Any) -> Any:
    return grad - (grad * b.exp()).sum(params[0], True)


def _log_softmax_out(grad: Any, a: Any, b: Any, params: Any) -> Any:
    return -grad * b.exp() * a.sum(params[0], True)


softmax_backward = _define("softmax_backward", _softmax_rows, Derivative(_softmax_grad, _softmax_out))
log_softmax_backward = _define(
    "log_softmax_backward", _log_softmax_rows, Derivative(_log_softmax_grad, _log_softmax_out)
)


# -- the parts of log_softmax_backward, which compiled functions call for rows that registers do not hold ---------


def _sum_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    (grad,) = operands
    assert isinstance(grad, Meta)
    shape = tuple([1 if d == params[0] else n for d, n in enumerate(grad.shape)])
    return Signature((Meta.contiguous_of(shape, wide(grad.dtype), grad.device),), (grad,), params)


def _sum_host(launch: Launch) -> Body:
    kind = launch.outputs[0].dtype
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    widen = to_computing(kind, source.dtype)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        np.add.reduce(
            np.ascontiguousarray(widen(inputs[0])), axis=launch.params[0], keepdims=True, out=outputs[0]
        )

    return body


def _slope_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    grad, out, total = operands
    assert isinstance(grad, Meta) and isinstance(out, Meta) and isinstance(total, Meta)
    over = total.with_(shape=out.shape, strides=expand_strides(total.shape, total.strides, out.shape))
    return Signature((out,), (grad, out, over), params)


def _slope_host(launch: Launch) -> Body:
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, out, total = inputs
        shares = np.exp(widen(out))
        shares *= total
        np.copyto(outputs[0], widen(grad) - shares, casting="unsafe")

    return body


def _kinds(launch: Launch) -> tuple[tuple[tuple[dtype, ...], ...], tuple[dtype, ...]]:
    return ((wide(launch.outputs[0].dtype),),) * 3, ()


def _part(name: str, rule: Any, host: Callable[[Launch], Body], cuda: Any) -> Op:
    kernel = Kernel(name, host, lambda launch: 4 * launch.outputs[0].numel, cuda=cuda)
    op = Op(name, rule, kernel, FLOATS, lambda make, kind: [], derivative=NOT_DIFFERENTIABLE)
    note(op, "log_softmax")
    return op


_SUM = Fold(
    lambda launch: launch.params,
    lambda launch: (launch.outputs[0].dtype,),
    "T",
    "T{}",
    "x",
    "a + b",
    ("s",),
)
sum_of_gradient = _part("sum_of_gradient", _sum_rule, _sum_host, _SUM)
log_softmax_slope = _part(
    "log_softmax_slope", _slope_rule, _slope_host, Expression("a - exp_(b) * c", _kinds)
)
