"""Interpolation to another size, and its gradient.

# Note [How an interpolation computes]
Each spatial dimension is resampled separately. An element of the result is a weighted sum of a few elements of the
input (the taps), whose indices and weights depend only on the sizes. Each mode is therefore a table of taps for each
dimension, and one loop over taps implements all modes. The gradient uses the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import dtype, float64, uint8
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA
from flambeau.ops.nn.sliding_windows import summed_at
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]


class Resampling(NamedTuple):
    """The parameters of an interpolation.

    Attributes:
        mode: nearest, nearest-exact, linear, cubic or lanczos (antialiased only).
        scales: The scale factors of the call, or None.
    """

    mode: str
    size: tuple[int, ...]
    scales: tuple[float | None, ...]
    align_corners: bool = False
    antialias: bool = False

    def ratio(self, n: int, m: int, scale: float | None) -> float:
        """Return the distance in an input of n elements between adjacent positions of a result of m elements."""
        if self.align_corners and not self.mode.startswith("nearest"):
            return (n - 1) / (m - 1) if m > 1 else 0.0
        return 1.0 / scale if scale is not None and scale > 0 else n / m


def _interpolate_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """Infer the results. Operands: x (N, C, spatial ...)."""
    x, how = operands[0], params[0]
    assert isinstance(x, Meta)
    taken = (*FLOATS, uint8) if how.mode.startswith("nearest") else FLOATS
    if x.dtype not in taken:
        raise NotImplementedError(f"\"upsample_{how.mode}\" not implemented for '{x.dtype.torch_name}'")
    if len(how.size) != x.ndim - 2 or not all((*x.shape[1:], *how.size)):
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {list(x.shape[2:])} output "
            f"{list(how.size)}"
        )
    return Signature((x.suggest((*x.shape[:2], *how.size)),), (x,), params)


def _interpolate_host(launch: Launch) -> Body:
    how: Resampling = launch.params[0]
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    tables, widen = _tables(how, source.shape[2:], kind), to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = inputs[0] if how.mode.startswith("nearest") else widen(inputs[0])
        for axis in range(x.ndim - 1, 1, -1):
            x = _resample_axis(x, axis, *tables[axis - 2])
        np.copyto(outputs[0], x, casting="unsafe")

    return body


Table = tuple[Array, Array | None]
"""Indices into the input and their weights, each (taps, places of the result); no weights: one tap of weight 1."""


def _tables(how: Resampling, size: Sequence[int], kind: dtype) -> list[Table]:
    number = np.float64 if kind is float64 else np.float32
    each = zip(size, how.size, how.scales, strict=True)
    return [_taps(how, n, m, scale, number) for n, m, scale in each]


def _resample_axis(x: Array, axis: int, index: Array, weight: Array | None) -> Array:
    """Return x resampled along one axis, according to a table of indices and weights."""
    if weight is None:
        return x.take(index[0], axis)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    out = x.take(index[0], axis) * weight[0].reshape(shape)
    for at, w in zip(index[1:], weight[1:], strict=True):
        out += x.take(at, axis) * w.reshape(shape)
    return out


def _taps(how: Resampling, n: int, m: int, scale: float | None, number: Any) -> Table:
    """Return the table that resamples n elements to m along one dimension, in float32 like PyTorch's kernels."""
    ratio, at = number(how.ratio(n, m, scale)), np.arange(m).astype(number)
    if how.mode == "nearest":
        return np.minimum(np.floor(at * ratio).astype(np.int64), n - 1)[None], None
    if how.mode == "nearest-exact":
        return np.minimum(np.floor((at + number(0.5)) * ratio).astype(np.int64), n - 1)[None], None
    if how.antialias:
        return _antialias_taps(how.mode, n, at, float(ratio), number)
    place = at * ratio if how.align_corners else ratio * (at + number(0.5)) - number(0.5)
    if how.mode == "linear":
        place = np.maximum(place, number(0))
        low = np.minimum(np.floor(place).astype(np.int64), n - 1)
        part = np.clip(place - low.astype(number), number(0), number(1))
        return np.stack([low, np.minimum(low + 1, n - 1)]), np.stack([1 - part, part])
    low = np.floor(place)
    index = low.astype(np.int64) + np.arange(-1, 3)[:, None]
    return np.clip(index, 0, n - 1), cubic_weights(place - low)


def cubic_weights(t: Array, a: float = -0.75) -> Array:
    """Return the weights (4, *t.shape) of the four elements around a position at distance t in [0, 1) after the
    second.
    """
    number = t.dtype.type
    a = number(a)

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return np.stack([far(t + 1), near(t), near(1 - t), far(2 - t)]).astype(t.dtype, copy=False)


def cubic_slopes(t: Array, a: float = -0.75) -> Array:
    """Return the derivatives of `cubic_weights` with respect to t."""
    number = t.dtype.type
    a = number(a)

    def near(x: Array) -> Array:
        return (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Array) -> Array:
        return (3 * a * x - 10 * a) * x + 8 * a

    return np.stack([far(t + 1), near(t), -near(1 - t), -far(2 - t)]).astype(t.dtype, copy=False)


def _antialias_taps(mode: str, n: int, at: Array, ratio: float, number: Any) -> tuple[Array, Array]:
    """Return a table of taps whose filter is as wide as the sampling step, with weights normalized to sum 1."""
    radius, filter_of = _FILTERS[mode]
    reach = radius * max(ratio, 1.0)
    step = 1.0 / max(ratio, 1.0)
    centre = ratio * (at.astype(np.float64) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), n)
    index = first + np.arange(int((last - first).max()))[:, None]
    away = np.abs((index - centre + 0.5) * step)
    weight = np.where(index < last, filter_of(away), 0)
    return np.minimum(index, n - 1), (weight / weight.sum(axis=0)).astype(number)


def _cubic(x: Array, a: float = -0.5) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _triangle(x: Array) -> Array:
    return np.maximum(1 - x, 0)


def _lanczos(x: Array) -> Array:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)


# mode: (half of the filter's width, the filter as a function of the distance from its centre)
_FILTERS: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "linear": (1.0, _triangle), "cubic": (2.0, _cubic), "lanczos": (3.0, _lanczos),
}  # fmt: skip


def _flops(launch: Launch) -> int:
    return 8 * launch.outputs[0].numel


def _interpolate_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    if kind is uint8:
        return [((make(2, 3, 5, low=0, high=9),), (Resampling("nearest", (8,), (None,)),))]
    modes = [
        Resampling("nearest", (8, 3), (None, None)), Resampling("nearest-exact", (8, 3), (None, 0.5)),
        Resampling("linear", (8, 3), (None, None)), Resampling("linear", (7, 9), (None, None), True),
        Resampling("cubic", (8, 3), (1.6, None)), Resampling("cubic", (3, 2), (None, None), False, True),
        Resampling("linear", (3, 2), (None, None), False, True),
        Resampling("lanczos", (3, 9), (None, 1.6), False, True),
    ]  # fmt: skip
    return [((make(2, 3, 5, 6),), (how,)) for how in modes]


def _back(grad: Any, metas: Any, params: Params, call: Any) -> Any:
    return call(interpolate_backward, (grad,), (params[0], metas[0].shape[2:]))


_NAMES = {
    "nearest": ("Nearest",) * 3, "nearest-exact": ("NearestExact",) * 3,
    "linear": ("Linear", "Bilinear", "Trilinear"), "cubic": ("", "Bicubic", ""),
    "lanczos": ("", "Lanczos", ""),
}  # fmt: skip


def _name(metas: Any, params: Params) -> str:
    how, dims = params[0], metas[0].ndim - 2
    return f"Upsample{_NAMES[how.mode][dims - 1]}{dims}D{'Aa' if how.antialias else ''}Backward0"


interpolate = define(
    Op(
        "interpolate", _interpolate_rule,
        Kernel(
            "interpolate", _interpolate_host, _flops, cuda=Routine("nn.resampling:interpolate"),
            work=element_work.resampling,
        ),
        (*FLOATS, uint8),
        _interpolate_samples, derivative=Derivative(_back, name=_name, linear="together"), autocast=FLOAT32_ON_CUDA,
    )
)  # fmt: skip


# -- the gradient: params (Resampling, the input's spatial size) -------------------------------------------------


def _backward_rule(operands: Sequence[Operand], params: Params) -> Signature:
    grad = operands[0]
    how, size = params
    assert isinstance(grad, Meta)
    if grad.dtype not in FLOATS:
        raise NotImplementedError(
            f"\"upsample_{how.mode}_backward\" not implemented for '{grad.dtype.torch_name}'"
        )
    if grad.shape[2:] != how.size:
        raise RuntimeError(
            f"Expected grad_output to have the spatial size {list(how.size)} of the output, but got "
            f"{list(grad.shape[2:])}"
        )
    # PyTorch's gradients of these modes are contiguous; those of the others have the layout of `grad`.
    contiguous = how.mode == "cubic" or (grad.ndim == 5 and how.mode != "linear")
    last = grad.channels_last and not contiguous
    out = Meta.laid((*grad.shape[:2], *size), grad.dtype, grad.device, last)
    return Signature((out,), (grad,), params)


def _backward_host(launch: Launch) -> Body:
    how, size = launch.params
    kind = launch.outputs[0].dtype
    tables, widen = _tables(how, size, kind), to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = widen(inputs[0])
        for axis, (n, table) in enumerate(zip(size, tables, strict=True), 2):
            x = _spread(x, axis, n, *table)
        np.copyto(outputs[0], x, casting="unsafe")

    return body


def _spread(x: Array, axis: int, n: int, index: Array, weight: Array | None) -> Array:
    """Add each element of x to its taps among n elements along an axis: the transpose of `_resample_axis`."""
    out = np.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    for tap, at in enumerate(index):
        summed_at(out, x if weight is None else x * weight[tap].reshape(shape), at, axis)
    return out


def _backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (x,), (how,) in _interpolate_samples(make, kind):
        yield (make(*x.shape[:2], *how.size),), (how, x.shape[2:])


interpolate_backward = define(
    Op(
        "interpolate_backward",
        _backward_rule,
        Kernel(
            "interpolate_backward", _backward_host, _flops, cuda=Routine("nn.resampling:interpolate_backward")
        ),
        FLOATS,
        _backward_samples,
        derivative=Derivative(lambda grad, params, call: call(interpolate, (grad,), params[:1])),
    )
)
