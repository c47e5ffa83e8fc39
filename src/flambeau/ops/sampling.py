"""Sampling between elements: interpolation to another size, and reading at the places of a grid.

# Note [How an interpolation computes]
Each spatial dimension is resampled by itself: a place of the result is a weighted sum of a few places of the
input (the taps), whose indices and weights depend on the size alone. So every mode is a table of taps for
each dimension, and one loop over taps does them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, float64, uint8
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Kernel, Launch
from flambeau.ops.indexing import one_device
from flambeau.ops.op import Make, Op, Operand, Sample, Signature, define
from flambeau.ops.pointwise import FLOATS
from flambeau.ops.reduction import to_computing

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Resampling:
    """mode: nearest, nearest-exact, linear or cubic. `scales`: the factors given, or None for that of the sizes."""

    mode: str
    size: tuple[int, ...]
    scales: tuple[float | None, ...]
    align_corners: bool = False
    antialias: bool = False


def _interpolate_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """x (N, C, spatial ...)."""
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
    return Signature((Meta.contiguous_of((*x.shape[:2], *how.size), x.dtype, x.device),), (x,), params)


def _interpolate_host(launch: Launch) -> Body:
    how: Resampling = launch.params[0]
    source, kind = launch.inputs[0], launch.outputs[0].dtype
    assert isinstance(source, Meta)
    number = np.float64 if kind is float64 else np.float32
    each = zip(source.shape[2:], how.size, how.scales, strict=True)
    tables = [_taps(how, n, m, scale, number) for n, m, scale in each]
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = inputs[0] if how.mode.startswith("nearest") else widen(inputs[0])
        for axis in range(x.ndim - 1, 1, -1):
            x = _resampled(x, axis, *tables[axis - 2])
        np.copyto(outputs[0], x, casting="unsafe")

    return body


def _resampled(x: Array, axis: int, index: Array, weight: Array | None) -> Array:
    """x along one axis: index and weight are (taps, places); no weight takes single places."""
    if weight is None:
        return x.take(index[0], axis)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    out = x.take(index[0], axis) * weight[0].reshape(shape)
    for at, w in zip(index[1:], weight[1:], strict=True):
        out += x.take(at, axis) * w.reshape(shape)
    return out


def _ratio(how: Resampling, n: int, m: int, scale: float | None) -> float:
    """How far one step in the result is in the input."""
    if how.align_corners and not how.mode.startswith("nearest"):
        return (n - 1) / (m - 1) if m > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else n / m


def _taps(how: Resampling, n: int, m: int, scale: float | None, number: Any) -> tuple[Array, Array | None]:
    """The table of one dimension of n elements to m, in float32 as PyTorch's kernels compute it."""
    ratio, at = number(_ratio(how, n, m, scale)), np.arange(m).astype(number)
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
    """The weights of the four elements around a place t in [0, 1) past the second: (4, *t.shape)."""
    number = t.dtype.type
    a = number(a)

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return np.stack([far(t + 1), near(t), near(1 - t), far(2 - t)]).astype(t.dtype, copy=False)


def _antialias_taps(mode: str, n: int, at: Array, ratio: float, number: Any) -> tuple[Array, Array]:
    """A triangle or cubic as wide as the step between places, its weights made to sum to 1."""
    reach = (1.0 if mode == "linear" else 2.0) * max(ratio, 1.0)
    step = 1.0 / max(ratio, 1.0)
    centre = ratio * (at.astype(np.float64) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), n)
    index = first + np.arange(int((last - first).max()))[:, None]
    away = np.abs((index - centre + 0.5) * step)
    shape = np.maximum(1 - away, 0) if mode == "linear" else _cubic(away)
    weight = np.where(index < last, shape, 0)
    return np.minimum(index, n - 1), (weight / weight.sum(axis=0)).astype(number)


def _cubic(x: Array, a: float = -0.5) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


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
    ]  # fmt: skip
    return [((make(2, 3, 5, 6),), (how,)) for how in modes]


interpolate = define(
    Op(
        "interpolate", _interpolate_rule, Kernel("interpolate", _interpolate_host, _flops), (*FLOATS, uint8),
        _interpolate_samples,
    )
)  # fmt: skip


# -- grid_sample: x (N, C, spatial ...), grid (N, places ..., dims); params (mode, padding, align_corners) -----


def _grid_rule(operands: Sequence[Operand], params: Params) -> Signature:
    x, grid = operands
    assert isinstance(x, Meta) and isinstance(grid, Meta)
    where = one_device(operands)
    if x.dtype is not grid.dtype:
        raise RuntimeError(
            "grid_sampler(): expected input and grid to have same dtype, but input has "
            f"{x.dtype.torch_name} and grid has {grid.dtype.torch_name}"
        )
    if x.ndim not in (4, 5) or x.ndim != grid.ndim:
        raise RuntimeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but got input with "
            f"sizes {list(x.shape)} and grid with sizes {list(grid.shape)}"
        )
    if x.shape[0] != grid.shape[0]:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, but got input with sizes "
            f"{list(x.shape)} and grid with sizes {list(grid.shape)}"
        )
    if grid.shape[-1] != x.ndim - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {x.ndim - 2} in last dimension, but got grid with sizes "
            f"{list(grid.shape)}"
        )
    if not all(x.shape[2:]):
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
            f"{list(x.shape)}"
        )
    if params[0] == "bicubic" and x.ndim == 5:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"grid_sampler\" not implemented for '{x.dtype.torch_name}'")
    shape = (*x.shape[:2], *grid.shape[1:-1])
    return Signature((Meta.contiguous_of(shape, x.dtype, where),), (x, grid), params)


def _grid_host(launch: Launch) -> Body:
    mode, padding, align = launch.params
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)
    sample = {"nearest": _grid_nearest, "bilinear": _grid_linear, "bicubic": _grid_cubic}[mode]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, grid = widen(inputs[0]), widen(inputs[1])
        field = Field(x)
        # The grid's last dimension begins with the last spatial one.
        places = [_unscaled(grid[..., -1 - d], n, align) for d, n in enumerate(field.size)]

        def inside(at: Array, axis: int) -> Array:
            return _padded_place(at, field.size[axis], padding, align)

        np.copyto(outputs[0], np.moveaxis(sample(field, places, inside), -1, 1), casting="unsafe")

    return body


class Field:
    """An array (N, C, spatial ...) as rows of channels, which are read at integer places faster than one by one."""

    def __init__(self, x: Array) -> None:
        self.size = x.shape[2:]
        self.channels = x.shape[1]
        self.kind = x.dtype
        self.rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])

    def read(self, places: Sequence[Array], weight: Array | None = None) -> Array:
        """The channels at places (N, ...), (N, ..., C), times a weight: 0 where a place lies outside."""
        inside = np.ones(places[0].shape, bool)
        flat = np.arange(len(places[0])).reshape(-1, *[1] * (places[0].ndim - 1))
        for at, n in zip(places, self.size, strict=True):
            inside &= (at >= 0) & (at <= n - 1)
            flat = flat * n + np.clip(np.where(inside, at, 0), 0, n - 1).astype(np.int64)
        found = self.rows.take(flat.reshape(-1), 0).reshape(*flat.shape, self.channels)
        if weight is not None:
            found *= weight[..., None]
        found[~inside] = 0
        return found


Inside = Callable[[Array, int], Array]


def _unscaled(at: Array, n: int, align: bool) -> Array:
    """From [-1, 1] to places of n elements."""
    number = at.dtype.type
    return (at + 1) / number(2) * number(n - 1) if align else ((at + 1) * number(n) - 1) / number(2)


def _padded_place(at: Array, n: int, padding: str, align: bool) -> Array:
    if padding == "zeros":
        return at
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        at = _reflected(at, low, span)
    return np.where(np.isnan(at), at.dtype.type(0), np.clip(at, 0, n - 1))


def _reflected(at: Array, low: float, span: float) -> Array:
    number = at.dtype.type
    if span == 0:
        return np.zeros_like(at)
    away = np.abs(at - number(low))
    turns, extra = np.floor(away / number(span)), np.fmod(away, number(span))
    return np.where(turns % 2 == 0, extra + number(low), number(span) - extra + number(low))


def _grid_nearest(x: Field, places: list[Array], inside: Inside) -> Array:
    return x.read([np.rint(inside(at, axis)) for axis, at in enumerate(places)])


def _grid_linear(x: Field, places: list[Array], inside: Inside) -> Array:
    places = [inside(at, axis) for axis, at in enumerate(places)]
    low = [np.floor(at) for at in places]
    out = np.zeros((*places[0].shape, x.channels), x.kind)
    for corner in np.ndindex(*(2,) * len(places)):
        weight = np.ones(places[0].shape, x.kind)
        for at, base, up in zip(places, low, corner, strict=True):
            weight *= at - base if up else base + 1 - at
        out += x.read([base + up for base, up in zip(low, corner, strict=True)], weight)
    return out


def _grid_cubic(x: Field, places: list[Array], inside: Inside) -> Array:
    low = [np.floor(at) for at in places]
    weights = [cubic_weights(at - base) for at, base in zip(places, low, strict=True)]
    out = np.zeros((*places[0].shape, x.channels), x.kind)
    for i, j in np.ndindex(4, 4):
        at = [inside(low[0] + (i - 1), 0), inside(low[1] + (j - 1), 1)]
        out += x.read(at, weights[0][i] * weights[1][j])
    return out


def _grid_flops(launch: Launch) -> int:
    return 16 * launch.outputs[0].numel


def _grid_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            yield (make(2, 3, 4, 5), make(2, 3, 2, 2, low=-1.5, high=1.5)), (mode, padding, False)
    yield (make(1, 2, 3, 4, 5), make(1, 2, 2, 3, 3, low=-1.5, high=1.5)), ("bilinear", "zeros", True)


grid_sample = define(
    Op("grid_sample", _grid_rule, Kernel("grid_sample", _grid_host, _grid_flops), FLOATS, _grid_samples)
)
