"""softmax and log_softmax: one kernel along one dimension. params: (dim, the result's dtype or None)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, REALS
from flambeau.ops.reduce.softmax_gradients import log_softmax_backward, softmax_backward
from flambeau.ops.work import row_work

Array = np.ndarray[Any, Any]


def _softmax(x: Array, axis: int) -> Array:
    grown = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return np.asarray(grown / np.sum(grown, axis, keepdims=True))


def _log_softmax(x: Array, axis: int) -> Array:
    less = x - np.max(x, axis, keepdims=True, initial=-np.inf)
    return np.asarray(less - np.log(np.sum(np.exp(less), axis, keepdims=True)))


def _rule_of(stub: str) -> Callable[[Sequence[Operand], tuple[Any, ...]], Signature]:
    def rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        x = operands[0]
        assert isinstance(x, Meta)
        dim, asked = params
        kind = asked or x.dtype
        axis = wrap_dim(dim, x.ndim)
        if kind not in FLOATS and x.numel:
            raise NotImplementedError(f"\"{stub}\" not implemented for '{kind.torch_name}'")
        out = Meta.contiguous_of(x.shape, kind, x.device)
        return Signature((out,), (x,), (axis, kind))

    return rule


def _host_of(formula: Callable[[Array, int], Array]) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        axis, kind = launch.params
        source = launch.inputs[0]
        assert isinstance(source, Meta)
        convert = to_computing(kind, source.dtype)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            found = formula(np.atleast_1d(convert(inputs[0])), axis)
            np.copyto(outputs[0], found.reshape(outputs[0].shape), casting="unsafe")

        return body

    return host


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for shape, dim in (((3, 5), 1), ((2, 3, 4), 0), ((2, 3, 4), -2)):
        yield (make(*shape),), (dim, None if kind in FLOATS else FLOATS[2])


def _define(name: str, formula: Callable[[Array, int], Array], stub: str, derivative: Derivative) -> Op:
    kernel = Kernel(
        name,
        _host_of(formula),
        lambda launch: 12 * launch.outputs[0].numel,
        cuda=Routine(f"nn.softmax:{name}", row_dims=lambda launch: launch.params[:1]),
        work=row_work.softmax,
        fast=HostRoutine(f"softmax:{name}", ulps=8),
    )
    return define(
        Op(name, _rule_of(stub), kernel, REALS, _samples, derivative=derivative, autocast=FLOAT32_ON_CUDA)
    )


def _softmax_back(grad: Any, out: Any, params: Any, call: Any) -> Any:
    return call(softmax_backward, (grad, out), (params[0],))


def _log_softmax_back(grad: Any, out: Any, params: Any, call: Any) -> Any:
    return call(log_softmax_backward, (grad, out), (params[0],))


softmax = _define("softmax", _softmax, "softmax_lastdim_kernel_impl", Derivative(_softmax_back))
log_softmax = _define(
    "log_softmax",
    _log_softmax,
    "log_softmax_lastdim_kernel_impl",
    Derivative(_log_softmax_back),
)
