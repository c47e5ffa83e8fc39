"""softmax and log_softmax: one kernel along one dimension. params: (dim, the result's dtype or None)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA
from flambeau.ops.cache_blocks import contiguous, fold_rows, row_blocks
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, REALS
from flambeau.ops.reduce.softmax_gradients import log_softmax_backward, softmax_backward
from flambeau.ops.work import row_work

Array = np.ndarray[Any, Any]


Rows = Callable[[Array, Array], None]
"""`rows(x, out)`: along the last axis of two matrices, that may be one."""


def _softmax(x: Array, out: Array) -> None:
    np.subtract(x, fold_rows(np.maximum, x)[:, None], out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, axis=-1, keepdims=True), out=out)


def _log_softmax(x: Array, out: Array) -> None:
    np.subtract(x, fold_rows(np.maximum, x)[:, None], out=out)
    np.subtract(out, np.log(np.add.reduce(np.exp(out), axis=-1, keepdims=True)), out=out)


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


def _host_of(rows: Rows) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        axis, kind = launch.params
        source = launch.inputs[0]
        assert isinstance(source, Meta)
        convert = to_computing(kind, source.dtype)
        length, last = (source.shape[axis], axis == source.ndim - 1) if source.ndim else (1, True)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            x, out = convert(inputs[0]), outputs[0]
            lasting = contiguous(x if last else x.swapaxes(axis, -1))  # sums are pairwise along memory alone
            direct = last and out.dtype == x.dtype and out.flags.c_contiguous
            result = out if direct else np.empty_like(lasting)
            source, into = lasting.reshape(-1, length), result.reshape(-1, length)
            for part in row_blocks(source):
                rows(source[part], into[part])
            if not direct:
                np.copyto(out, result if last else result.swapaxes(axis, -1), casting="unsafe")

        return body

    return host


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for shape, dim in (((3, 5), 1), ((2, 3, 4), 0), ((2, 3, 4), -2)):
        yield (make(*shape),), (dim, None if kind in FLOATS else FLOATS[2])


def _define(name: str, rows: Rows, stub: str, derivative: Derivative) -> Op:
    kernel = Kernel(
        name,
        _host_of(rows),
        lambda launch: 12 * launch.outputs[0].numel,
        cuda=Routine(f"nn.softmax:{name}"),
        work=row_work.softmax,
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
