"""The gradients of pooling: a maximum's gradient goes to its element, a mean's is divided among the window.

Each operator returns the gradient by the pooling's input, (N, C, *size). An element of several windows gets the sum of
their gradients, in the order of the windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, int64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.nn.sliding_windows import Array, Ints, Windows, bounds_of, divisors, summed_at
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device, table
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS

Params = tuple[Any, ...]


def _source(grad: Meta, size: Ints, count: Ints, name: str, channels_last: bool = False) -> Meta:
    """Return the layout of the pooling's input. Raises if the gradient's shape does not fit it."""
    if grad.dtype not in FLOATS:
        raise NotImplementedError(f"\"{name}\" not implemented for '{grad.dtype.torch_name}'")
    if grad.shape[2:] != count:
        raise RuntimeError(
            f"{name}(): expected grad_output to have spatial size {list(count)}, but got {list(grad.shape[2:])}"
        )
    return Meta.laid((*grad.shape[:2], *size), grad.dtype, grad.device, channels_last)


def _check_index(grad: Meta, index: Meta, name: str) -> None:
    if index.dtype is not int64:
        raise RuntimeError(f"elements in indices should be type int64 but got: {index.dtype.torch_name}")
    if index.shape[:2] != grad.shape[:2]:
        raise RuntimeError(
            f"{name}(): expected indices of {list(grad.shape[:2])} planes, but got {list(index.shape)}"
        )


def _flops(launch: Launch) -> int:
    grad = launch.inputs[0]
    return grad.numel if isinstance(grad, Meta) else 0


# -- maxima: inputs grad, indices ---------------------------------------------------------------------------


def _max_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: Windows, size."""
    grad, index = operands
    how, size = params
    assert isinstance(grad, Meta) and isinstance(index, Meta)
    out = _source(grad, size, how.size(size), "max_pool_backward", index.channels_last)
    return _check_and_sign(grad, index, out, operands, params)


def _adaptive_max_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: size."""
    grad, index = operands
    assert isinstance(grad, Meta) and isinstance(index, Meta)
    out = _source(grad, params[0], grad.shape[2:], "adaptive_max_pool_backward", index.channels_last)
    return _check_and_sign(grad, index, out, operands, params)


def _check_and_sign(
    grad: Meta, index: Meta, out: Meta, operands: Sequence[Operand], params: Params
) -> Signature:
    one_device(operands)
    _check_index(grad, index, "max_pool_backward")
    if index.shape != grad.shape:
        raise RuntimeError(
            f"Expected shape of indices to be same as that of grad_output ({list(grad.shape)}) but got indices "
            f"tensor with shape: {list(index.shape)}"
        )
    return Signature((out,), (grad, index), params)


def _max_host(launch: Launch) -> Body:
    kind = launch.outputs[0].dtype
    widen, volume = to_computing(kind, kind), math.prod(launch.outputs[0].shape[2:])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad = widen(inputs[0])
        out = np.zeros(outputs[0].size, grad.dtype)
        planes = np.arange(math.prod(grad.shape[:2])).reshape(*grad.shape[:2], *(1,) * (grad.ndim - 2))
        held = (inputs[1] >= 0) & (inputs[1] < volume)  # a window within the padding contains no element
        np.add.at(out, (inputs[1] + planes * volume)[held], grad[held])
        np.copyto(outputs[0], out.reshape(outputs[0].shape), casting="unsafe")

    return body


def _max_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    index = np.array([0, 1, 3, 3, 5, 1, 8, 8, 5, 7, 8, 9]).reshape(1, 1, 3, 4).repeat(2, 1)
    yield (make(1, 2, 3, 4), index), (Windows((2, 2), (1, 1), (1, 0), (1, 1)), (2, 5))
    yield (make(1, 2, 3), np.array([[[0, 2, 6], [1, 4, 5]]])), (Windows((3,), (2,), (0,), (1,)), (7,))
    index = np.array([[0, 3], [9, 11]]).reshape(1, 1, 2, 2)
    yield (make(1, 1, 2, 2), index), (Windows((1, 2), (2, 2), (0, 0), (1, 1)), (4, 4))


def _adaptive_max_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(1, 2, 3), np.array([[[0, 2, 6], [1, 3, 5]]])), ((7,),)
    yield (make(1, 1, 2, 3), np.array([[0, 0, 1], [2, 3, 3]]).reshape(1, 1, 2, 3)), ((2, 2),)


def _gradient(name: str, rule: Any, host: Callable[[Launch], Body], samples: Any, back: Any) -> Op:
    kernel = Kernel(name, host, _flops, cuda=Routine(f"nn.pooling:{name}"))
    return define(Op(name, rule, kernel, FLOATS, samples, derivative=Derivative(back)))


def _gather_chosen(grad: Any, b: Any) -> Any:
    """Return the elements at the indices of the maxima; 0 for an empty window."""
    flat, places = grad.flatten(2), b.flatten(2)
    held = (places >= 0) & (places < flat.shape[2])
    return (flat.gather(2, places.clamp(0, flat.shape[2] - 1)) * held).reshape(b.shape)


max_pool_backward = _gradient("max_pool_backward", _max_rule, _max_host, _max_samples, _gather_chosen)
adaptive_max_pool_backward = _gradient(
    "adaptive_max_pool_backward", _adaptive_max_rule, _max_host, _adaptive_max_samples, _gather_chosen
)


# -- max_unpool: inputs grad (N, C, *size), indices; each maximum's gradient is where it was put ----------------


def _unpool_rule(operands: Sequence[Operand], params: Params) -> Signature:
    grad, index = operands
    assert isinstance(grad, Meta) and isinstance(index, Meta)
    out = _source(grad, index.shape[2:], grad.shape[2:], "max_unpool_backward")
    one_device(operands)
    _check_index(grad, index, "max_unpool_backward")
    return Signature((out,), (grad, index), params)


def _unpool_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, index = (a.reshape(*a.shape[:2], math.prod(a.shape[2:])) for a in inputs)
        bad = (index < 0) | (index >= grad.shape[2])
        if bad.any():
            raise RuntimeError(
                f"Found an invalid max index: {index[bad][0]} (output volumes are of size "
                f"{'x'.join(map(str, inputs[0].shape[2:]))}"
            )
        np.copyto(outputs[0], np.take_along_axis(grad, index, 2).reshape(outputs[0].shape))

    return body


def _unpool_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(1, 2, 4, 4), np.array([[[[0, 3], [9, 15]], [[1, 2], [10, 8]]]])), ())]


def _unpool_back(grad: Any, b: Any, metas: Any) -> Any:
    size = metas[0].shape
    flat = grad.new_zeros((*size[:2], math.prod(size[2:])))
    return flat.scatter_add(2, b.flatten(2), grad.flatten(2)).reshape(size)


max_unpool_backward = _gradient(
    "max_unpool_backward", _unpool_rule, _unpool_host, _unpool_samples, _unpool_back
)


# -- means: the input is grad -----------------------------------------------------------------------------------


def _avg_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: Windows, count_include_pad, divisor_override, size, channels_last."""
    grad = operands[0]
    *kept, last = params
    how, _, _, size = kept
    assert isinstance(grad, Meta)
    out = _source(grad, size, how.size(size), "avg_pool_backward", last)
    return Signature((out,), (grad,), tuple(kept))


def _avg_host(launch: Launch) -> Body:
    how, include, divisor, size = launch.params
    count, kind = how.size(size), launch.outputs[0].dtype
    widen = to_computing(kind, kind)
    shares = divisors(how, size, count, include) if divisor is None else np.asarray(divisor)
    how = how.reaching(size)
    pads = how.pads(size, count)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        x = x / shares.astype(x.dtype)
        for axis, (a, b) in enumerate(pads):
            whole = size[axis] + a + b
            x = _spread_along(x, 2 + axis, how.kernel[axis], how.stride[axis], whole)[
                (slice(None),) * (2 + axis) + (slice(a, a + size[axis]),)
            ]
        np.copyto(outputs[0], x, casting="unsafe")

    return body


def _spread_along(x: Array, axis: int, kernel: int, stride: int, whole: int) -> Array:
    """Add each element to `kernel` elements along an axis of `whole`, with `stride` between the first ones."""
    count = x.shape[axis]
    out = np.zeros((*x.shape[:axis], whole, *x.shape[axis + 1 :]), x.dtype)
    for tap in range(kernel):
        out[(slice(None),) * axis + (slice(tap, tap + (count - 1) * stride + 1, stride),)] += x
    return out


def _avg_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 3, 4),), (Windows((3,), (2,), (1,), (1,)), True, None, (7,), False)
    yield (make(2, 2, 4, 5),), (Windows((2, 3), (2, 1), (1, 1), (1, 1), True), False, None, (6, 5), True)
    yield (
        (make(1, 2, 2, 2, 2),),
        (Windows((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)), True, 3, (4, 4, 5), False),
    )


# The derivative of a mean's gradient is the mean itself, which this file finds in the table of operators.
def _avg_back(grad: Any, params: Params, call: Any) -> Any:
    return call(table["avg_pool"], (grad,), params[:3])


avg_pool_backward = _gradient("avg_pool_backward", _avg_rule, _avg_host, _avg_samples, _avg_back)


def _adaptive_avg_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Params: size, channels_last."""
    grad = operands[0]
    size, last = params
    assert isinstance(grad, Meta)
    out = _source(grad, size, grad.shape[2:], "adaptive_avg_pool_backward", last)
    if grad.ndim != len(size) + 2 or not all(size):
        raise RuntimeError(
            "adaptive_avg_pool_backward(): Expected input to have non-zero size for non-batch dimensions, but got "
            f"{list(size)}"
        )
    return Signature((out,), (grad,), (size,))


def _adaptive_avg_host(launch: Launch) -> Body:
    size, kind = launch.params[0], launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        for axis, n in enumerate(size):
            x = _shared_along(x, 2 + axis, n)
        np.copyto(outputs[0], x, casting="unsafe")

    return body


def _shared_along(x: Array, axis: int, n: int) -> Array:
    """Divide each element equally among its adaptive window along an axis of n elements."""
    start, end = bounds_of(n, x.shape[axis])
    length = end - start
    x = x / length.astype(x.dtype).reshape([-1, *[1] * (x.ndim - axis - 1)])
    if x.shape[axis] and n % x.shape[axis] == 0:
        return np.repeat(x, n // x.shape[axis], axis)
    out = np.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype)
    for tap in range(int(length.max(initial=0))):
        held = np.flatnonzero(tap < length)
        summed_at(out, x.take(held, axis), start[held] + tap, axis)
    return out


def _adaptive_avg_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(2, 3, 3),), ((7,), False)),
        ((make(2, 2, 4, 7),), ((6, 5), True)),
        ((make(1, 2, 2, 3, 1),), ((4, 3, 5), False)),
    ]


def _adaptive_avg_back(grad: Any, metas: Any, call: Any) -> Any:
    return call(table["adaptive_avg_pool"], (grad,), (metas[0].shape[2:],))


adaptive_avg_pool_backward = _gradient(
    "adaptive_avg_pool_backward", _adaptive_avg_rule, _adaptive_avg_host, _adaptive_avg_samples, _adaptive_avg_back
)  # fmt: skip
