"""Pooling: the maximum (with its index) or the mean of windows; adaptive windows; unpooling.

Inputs are (N, C, spatial ...). The maximum compares elements in PyTorch's order: a NaN wins, and the first of equal
elements. Means are sums along one dimension after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import bool_, dtype, int64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32_ON_CPU, VOLUMES_ON_CPU
from flambeau.ops.nn import pooling_gradients as gradients
from flambeau.ops.nn.sliding_windows import Array, Ints, Windows, bounds_of, divisors, pad_axes, taps
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, NUMBERS
from flambeau.ops.work import element_work, row_work


def _output_size(x: Meta, how: Windows) -> Ints:
    size = how.size(x.shape[2:])
    if any(n < 1 for n in size):
        given = "x".join(map(str, x.shape[1:]))
        found = "x".join(map(str, (x.shape[1], *size)))
        raise RuntimeError(
            f"Given input size: ({given}). Calculated output size: ({found}). Output size is too small"
        )
    return size


def _output_meta(x: Meta, size: Ints, channels_last: bool) -> Meta:
    return Meta.laid((*x.shape[:2], *size), x.dtype, x.device, channels_last)


def _is_image(x: Meta) -> bool:
    """Return True if the results of mean pooling and adaptive maxima keep channels last, which those of volumes do
    not.
    """
    return x.ndim == 4 and x.channels_last


def _refuse(x: Meta, name: str, dtypes: tuple[dtype, ...]) -> None:
    if x.dtype not in dtypes:
        raise NotImplementedError(f"\"{name}\" not implemented for '{x.dtype.torch_name}'")


def lowest(kind: np.dtype[Any]) -> Any:
    return -np.inf if kind.kind == "f" else np.iinfo(kind).min


# -- max_pool: values and places ------------------------------------------------------------------------


def _max_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, how = operands[0], params[0]
    assert isinstance(x, Meta)
    _refuse(x, "max_pool", NUMBERS)
    out = _output_meta(x, _output_size(x, how), x.channels_last)
    return Signature((out, out.with_(dtype=int64)), (x,), params)


def _max_host(launch: Launch) -> Body:
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    size, count, widen = source.shape[2:], launch.outputs[0].shape[2:], to_computing(kind, kind)
    how: Windows = launch.params[0]
    axes = places_along(how, size, count)
    first = flat_places(
        [np.where(at >= 0, at, n).min(axis=0) for at, n in zip(axes, size, strict=True)], size
    )

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        whole = pad_axes(x, how.pads(size, count), lowest(x.dtype))
        best = np.full(outputs[0].shape, lowest(x.dtype), x.dtype)
        where = np.broadcast_to(first, best.shape)
        for tap, places in taps(how.kernel, how.stride, how.dilation, count):
            seen = whole[places]
            better = (seen > best) | (seen != seen)  # NaN is greater than all numbers
            best = np.where(better, seen, best)
            where = np.where(
                better, flat_places([at[t] for at, t in zip(axes, tap, strict=True)], size), where
            )
        np.copyto(outputs[0], best, casting="unsafe")
        np.copyto(outputs[1], where)

    return body


def places_along(how: Windows, size: Ints, count: Ints) -> list[Array]:
    """Return, for each dimension, the position of each element of each window as an array (kernel, count).

    Positions may be in the padding.
    """
    ends = zip(count, how.kernel, how.stride, how.padding, how.dilation, strict=True)
    return [np.arange(k)[:, None] * d + np.arange(m) * s - p for m, k, s, p, d in ends]


def flat_places(places: Sequence[Array], size: Sequence[int]) -> Array:
    """Return indices into the flattened spatial dimensions, from the positions along each dimension."""
    at = np.zeros((1,) * len(size), np.int64)
    for axis, (place, n) in enumerate(zip(places, size, strict=True)):
        at = at * n + place.reshape([-1 if a == axis else 1 for a in range(len(size))])
    return at


def _max_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 3, 7),), (Windows((3,), (2,), (1,), (1,)),)
    yield (make(2, 2, 6, 5),), (Windows((2, 3), (2, 1), (1, 1), (1, 2), True),)
    yield (make(1, 2, 4, 4, 4),), (Windows((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),)


def _flops(launch: Launch) -> int:
    return launch.outputs[0].numel * math.prod(launch.params[0].kernel)


def _node_name(form: str) -> Callable[[Any, tuple[Any, ...]], str]:
    """Return a function that names the node. PyTorch names pooling of one dimension as that of two."""
    return lambda metas, params: form.format(max(metas[0].ndim - 2, 2)) + "Backward0"


def _max_back(grad: Any, out1: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(gradients.max_pool_backward, (grad, out1), (params[0], metas[0].shape[2:]))


max_pool = define(
    Op(
        "max_pool",
        _max_rule,
        Kernel(
            "max_pool",
            _max_host,
            _flops,
            cuda=Routine("nn.pooling:max_pool"),
            work=element_work.windows(280, 20),
            fast=HostRoutine("pooling:max_pool"),
        ),
        NUMBERS,
        _max_samples,
        derivative=Derivative(_max_back, name=_node_name("MaxPool{}DWithIndices"), outputs=1),
        autocast=VOLUMES_ON_CPU,
    )
)


# -- avg_pool: params Windows, count_include_pad, divisor_override -----------------------------------------


def _avg_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, how = operands[0], params[0]
    assert isinstance(x, Meta)
    _refuse(x, "avg_pool", (*FLOATS, int64))
    return Signature((_output_meta(x, _output_size(x, how), _is_image(x)),), (x,), params)


def _avg_host(launch: Launch) -> Body:
    how, include, divisor = launch.params
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    size, count, widen = source.shape[2:], launch.outputs[0].shape[2:], to_computing(kind, kind)
    shares = divisors(how, size, count, include) if divisor is None else np.asarray(divisor)
    how = how.reaching(size)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = pad_axes(widen(inputs[0]), how.pads(size, count))
        for axis in range(len(size)):
            x = _sum_along(x, 2 + axis, how.kernel[axis], how.stride[axis], count[axis])
        if x.dtype.kind == "i":
            np.copyto(outputs[0], (x / shares).astype(np.int64))
        else:
            np.copyto(outputs[0], x / shares.astype(x.dtype), casting="unsafe")

    return body


def _sum_along(x: Array, axis: int, kernel: int, stride: int, count: int) -> Array:
    found = np.lib.stride_tricks.sliding_window_view(x, kernel, axis)
    found = found[(slice(None),) * axis + (slice(None, (count - 1) * stride + 1, stride),)]
    return np.asarray(np.add.reduce(found, axis=-1))


def _avg_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 3, 7),), (Windows((3,), (2,), (1,), (1,)), True, None)
    yield (make(2, 2, 6, 5),), (Windows((2, 3), (2, 1), (1, 1), (1, 1), True), False, None)
    yield (make(1, 2, 4, 4, 4),), (Windows((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)), True, 3)


def _avg_back(grad: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(gradients.avg_pool_backward, (grad,), (*params, metas[0].shape[2:], _is_image(metas[0])))


avg_pool = define(
    Op(
        "avg_pool",
        _avg_rule,
        Kernel(
            "avg_pool",
            _avg_host,
            _flops,
            cuda=Routine("nn.pooling:avg_pool"),
            work=element_work.windows(280, 8),
        ),
        (*FLOATS, int64),
        _avg_samples,
        derivative=Derivative(_avg_back, name=_node_name("AvgPool{}D"), linear="together"),
        autocast=VOLUMES_ON_CPU,
    )
)


# -- adaptive pools: params (spatial size of the result) --------------------------------------------------


def _check_adaptive(x: Meta, name: str, size: Ints, dtypes: tuple[dtype, ...]) -> None:
    if any(n == 0 for n in x.shape[2:]) or len(size) != x.ndim - 2:
        raise RuntimeError(
            f"{name}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes "
            f"{list(x.shape)}"
        )
    if any(n < 0 for n in size):
        raise RuntimeError(
            f"{name}: elements of output_size must be greater than or equal to 0 but received {size}"
        )
    _refuse(x, name, dtypes)


def _adaptive_avg_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    _check_adaptive(x, "adaptive_avg_pool", params[0], FLOATS)
    last = x.channels_last if _is_one(params[0]) else _is_image(x)
    return Signature((_output_meta(x, params[0], last),), (x,), params)


def _is_one(size: Ints) -> bool:
    """Return True if one window covers the whole input. PyTorch computes this as a mean, whose layout differs."""
    return math.prod(size) == 1


def _adaptive_avg_host(launch: Launch) -> Body:
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    widen = to_computing(kind, kind)
    bounds = [bounds_of(n, m) for n, m in zip(source.shape[2:], launch.params[0], strict=True)]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        for at in np.ndindex(*launch.params[0]):
            window: list[Any] = [slice(start[i], end[i]) for i, (start, end) in zip(at, bounds, strict=True)]
            outputs[0][(..., *at)] = x[(..., *window)].mean(axis=tuple(range(2, x.ndim)))

    return body


def _adaptive_max_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    _check_adaptive(x, "adaptive_max_pool", params[0], FLOATS)
    out = _output_meta(x, params[0], _is_image(x))
    return Signature((out, out.with_(dtype=int64)), (x,), params)


def _adaptive_max_host(launch: Launch) -> Body:
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    size, widen = source.shape[2:], to_computing(kind, kind)
    bounds = [bounds_of(n, m) for n, m in zip(size, launch.params[0], strict=True)]
    lengths = [int((end - start).max()) for start, end in bounds]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        flat = x.reshape(*x.shape[:2], -1)
        best = np.full(outputs[0].shape, -np.inf, x.dtype)
        where = np.broadcast_to(flat_places([start for start, _ in bounds], size), best.shape).copy()
        for tap in np.ndindex(*lengths):
            places = [np.minimum(start + t, end - 1) for t, (start, end) in zip(tap, bounds, strict=True)]
            at = flat_places(places, size)
            seen = flat.take(at, 2)
            better = (seen > best) | (seen != seen)
            np.copyto(best, seen, where=better)
            np.copyto(where, at, where=better)
        np.copyto(outputs[0], best, casting="unsafe")
        np.copyto(outputs[1], where)

    return body


def _adaptive_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [
        ((make(2, 3, 7),), ((3,),)),
        ((make(2, 2, 6, 5),), ((4, 7),)),
        ((make(1, 2, 4, 3, 5),), ((2, 3, 1),)),
    ]


def _source_flops(launch: Launch) -> int:
    source = launch.inputs[0]
    return source.numel if isinstance(source, Meta) else 0


def _adaptive(
    name: str,
    rule: Callable[..., Signature],
    host: Callable[[Launch], Body],
    derivative: Derivative,
    fast: HostRoutine | None = None,
) -> Op:
    cuda = Routine(f"nn.pooling:{name}")
    kernel = Kernel(name, host, _source_flops, cuda=cuda, work=row_work.reduction(), fast=fast)
    return define(
        Op(name, rule, kernel, FLOATS, _adaptive_samples, derivative=derivative, autocast=VOLUMES_ON_CPU)
    )


def _adaptive_avg_back(grad: Any, metas: Any, params: Any, call: Any) -> Any:
    last = _is_image(metas[0]) and not _is_one(params[0])
    return call(gradients.adaptive_avg_pool_backward, (grad,), (metas[0].shape[2:], last))


def _adaptive_avg_name(metas: Any, params: tuple[Any, ...]) -> str:
    return "MeanBackward1" if _is_one(params[0]) else _node_name("AdaptiveAvgPool{}D")(metas, params)


def _adaptive_max_back(grad: Any, out1: Any, metas: Any, call: Any) -> Any:
    return call(gradients.adaptive_max_pool_backward, (grad, out1), (metas[0].shape[2:],))


adaptive_avg_pool = _adaptive(
    "adaptive_avg_pool", _adaptive_avg_rule, _adaptive_avg_host,
    Derivative(_adaptive_avg_back, name=_adaptive_avg_name, linear="together"),
    HostRoutine("pooling:adaptive_avg_pool", ulps=8),
)  # fmt: skip
adaptive_max_pool = _adaptive(
    "adaptive_max_pool", _adaptive_max_rule, _adaptive_max_host,
    Derivative(_adaptive_max_back, name=_node_name("AdaptiveMaxPool{}D"), outputs=1),
)  # fmt: skip


# -- max_unpool: params (spatial size of the result) ------------------------------------------------------


def _unpool_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, index = operands
    assert isinstance(x, Meta) and isinstance(index, Meta)
    where = one_device(operands)
    if index.dtype is not int64:
        raise RuntimeError(f"elements in indices should be type int64 but got: {index.dtype.torch_name}")
    if index.shape != x.shape:
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor ({list(x.shape)}) but got indices "
            f"tensor with shape: {list(index.shape)}"
        )
    _refuse(x, "max_unpooling", tuple(d for d in NUMBERS if d is not bool_))
    # PyTorch's kernel for GPUs gives it contiguous.
    out = _output_meta(x, params[0], _is_image(x) and where.type != "cuda")
    return Signature((out,), (x, index), params)


def _unpool_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, index = (a.reshape(*a.shape[:2], -1) for a in inputs)
        count = math.prod(outputs[0].shape[2:])
        bad = (index < 0) | (index >= count)
        if bad.any():
            raise RuntimeError(
                f"Found an invalid max index: {index[bad][0]} (output volumes are of size "
                f"{'x'.join(map(str, outputs[0].shape[2:]))}"
            )
        out = np.zeros((*x.shape[:2], count), x.dtype)
        np.put_along_axis(out, index, x, 2)
        np.copyto(outputs[0], out.reshape(outputs[0].shape))

    return body


def _unpool_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(1, 2, 2, 2), np.array([[[[0, 3], [9, 15]], [[1, 2], [10, 8]]]])), ((4, 4),))]


max_unpool = define(
    Op(
        "max_unpool",
        _unpool_rule,
        Kernel("max_unpool", _unpool_host, cuda=Routine("nn.pooling:max_unpool")),
        NUMBERS,
        _unpool_samples,
        derivative=Derivative(
            lambda grad, b, call: call(gradients.max_unpool_backward, (grad, b)),
            name=_node_name("MaxUnpool{}D"),
        ),
        autocast=FLOAT32_ON_CPU,
    )
)
