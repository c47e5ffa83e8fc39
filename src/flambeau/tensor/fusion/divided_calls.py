"""Operators with separate kernels that compiled functions call as several operators, which groups can fuse.

The parts have the bits of the operator. Its node, if the call is recorded, is that of the whole operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flambeau.core.dtype import int64
from flambeau.ops.nn.loss import count_targets, nll_loss_backward, nll_slope
from flambeau.ops.op import Op
from flambeau.ops.random.dropout import dropout_mask, dropout_scale, native_dropout
from flambeau.ops.reduce.softmax_gradients import log_softmax_backward, log_softmax_slope, sum_of_gradient
from flambeau.tape.mode import recording
from flambeau.tensor.call import call
from flambeau.tensor.tensor import Tensor

Args = Sequence[Any]
Params = tuple[Any, ...]
_MOST_TARGETS = 1 << 24  # that are counted exactly in float32


class Division(NamedTuple):
    """The division of an operator into parts.

    Attributes:
        suits: Called with arguments and params. False if a call is launched as a whole.
        run: Calls the parts and returns the results of the operator.
    """

    suits: Callable[[Args, Params], bool]
    run: Callable[[Args, Params], tuple[Tensor, ...]]


def is_divided(op: Op, args: Args, params: Params) -> bool:
    """Return True if a compiled function calls the parts of an operator."""
    division = _DIVISIONS.get(op)
    return division is not None and division.suits(args, params)


def call_parts(op: Op, args: Args, params: Params) -> tuple[Tensor, ...]:
    """Call the parts of an operator that `is_divided`, and return its results."""
    with recording(False):
        return _DIVISIONS[op].run(args, params)


# -- dropout: a mask, which depends on no element, and a product -------------------------------------------------


def _draws_in_order(args: Args, params: Params) -> bool:
    return args[0].meta.plain and args[0].meta.numel > 0


def _dropout(args: Args, params: Params) -> tuple[Tensor, ...]:
    x, seed, offset, keep = args
    mask: Tensor = call(dropout_mask, (seed, offset, keep), (x.meta, *params))
    return call(dropout_scale, (x, mask, keep)), mask


# -- the gradient of nll_loss: the number of targets that count, and an element for each class -------------------


def _has_rows_of_classes(args: Args, params: Params) -> bool:
    _, target, *weights = args
    meta = target.meta
    return not weights and len(params[2]) == 2 and meta.dtype is int64 and 0 < meta.numel < _MOST_TARGETS


def _nll_backward(args: Args, params: Params) -> tuple[Tensor, ...]:
    grad, target = args
    reduction, ignored, shape = params
    grads = grad.unsqueeze(1) if reduction == "none" else grad
    counts = [call(count_targets, (target,), (ignored, grad.meta.dtype))] if reduction == "mean" else []
    return (call(nll_slope, (grads, target.unsqueeze(1), *counts), (ignored, shape)),)


# -- the gradient of log_softmax, of rows that registers do not hold: the sum of a row, and an element -----------


def _has_dense_rows(args: Args, params: Params) -> bool:
    grad, out = args
    return params[0] == out.meta.ndim - 1 and grad.meta.plain and out.meta.plain and out.meta.numel > 0


def _log_softmax_backward(args: Args, params: Params) -> tuple[Tensor, ...]:
    grad, out = args
    return (call(log_softmax_slope, (grad, out, call(sum_of_gradient, (grad,), params))),)


_DIVISIONS = {
    native_dropout: Division(_draws_in_order, _dropout),
    nll_loss_backward: Division(_has_rows_of_classes, _nll_backward),
    log_softmax_backward: Division(_has_dense_rows, _log_softmax_backward),
}
