"""Reading at the places of a grid, between elements too, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Kernel, Launch, Routine
from flambeau.ops.computing import to_computing
from flambeau.ops.interpolation import cubic_slopes, cubic_weights
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise import FLOATS
from flambeau.ops.sampling_gradients import gradient

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]


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
        field = Field(widen(inputs[0]))
        places = _places(widen(inputs[1]), field.size, align)

        def inside(at: Array, axis: int) -> Array:
            return _padded_place(at, field.size[axis], padding, align)

        np.copyto(outputs[0], np.moveaxis(sample(field, places, inside), -1, 1), casting="unsafe")

    return body


def _places(grid: Array, size: Sequence[int], align: bool) -> list[Array]:
    """Where the grid points along each spatial dimension. Its last dimension begins with the last spatial one."""
    return [_unscaled(grid[..., -1 - d], n, align) for d, n in enumerate(size)]


class Field:
    """An array (N, C, spatial ...) as rows of channels, which are read at integer places faster than one by one."""

    def __init__(self, x: Array) -> None:
        self.size = x.shape[2:]
        self.channels = x.shape[1]
        self.kind = x.dtype
        self.rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])

    def find(self, places: Sequence[Array]) -> tuple[Array, Array]:
        """The rows of places (N, ...), and which of them lie inside; the others' rows are any."""
        inside = np.ones(places[0].shape, bool)
        flat = np.arange(len(places[0])).reshape(-1, *[1] * (places[0].ndim - 1))
        for at, n in zip(places, self.size, strict=True):
            inside &= (at >= 0) & (at <= n - 1)
            flat = flat * n + np.clip(np.where(inside, at, 0), 0, n - 1).astype(np.int64)
        return flat, inside

    def read(self, places: Sequence[Array], weight: Array | None = None) -> Array:
        """The channels at places (N, ...), (N, ..., C), times a weight: 0 where a place lies outside."""
        flat, inside = self.find(places)
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
            yield (make(1, 2, 3, 4), make(1, 2, 1, 2, low=-1.5, high=1.5)), (mode, padding, False)
    yield (make(1, 2, 3, 2, 2), make(1, 2, 1, 1, 3, low=-1.5, high=1.5)), ("bilinear", "zeros", True)


def _grid_back(grad: Any, a: Any, b: Any, params: Params, call: Any) -> Any:
    return call(grid_sample_backward, (grad, a, b), params)


grid_sample = define(
    Op(
        "grid_sample",
        _grid_rule,
        Kernel("grid_sample", _grid_host, _grid_flops, cuda=Routine("grid_sample")),
        FLOATS,
        _grid_samples,
        derivative=Derivative(whole=_grid_back, name=lambda x, params: f"GridSampler{x.ndim - 2}DBackward0"),
    )
)


# -- the gradients: inputs grad (N, C, places ...), x, grid ------------------------------------------------------

_NO_FIXED_ORDER = (
    "grid_sampler_{0}d_backward_cuda does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or you can use "
    "the 'warn_only=True' option, if that's acceptable for your application. You can also file an issue at "
    "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this operation."
)


def _backward_rule(operands: Sequence[Operand], params: Params) -> Signature:
    """params: as of grid_sample, then the flag of deterministic algorithms."""
    grad, *sampled = operands
    *how, fixed = params
    assert isinstance(grad, Meta)
    found = _grid_rule(sampled, tuple(how))
    (out,) = found.outputs
    x, grid = found.inputs
    assert isinstance(x, Meta) and isinstance(grid, Meta)
    where = one_device(operands)
    if grad.shape != out.shape or grad.dtype is not out.dtype:
        raise RuntimeError(
            f"grid_sampler_backward(): expected grad_output of shape {list(out.shape)} and dtype {out.dtype}, but got "
            f"{list(grad.shape)} and {grad.dtype}"
        )
    if fixed and where.type == "cuda":
        raise RuntimeError(_NO_FIXED_ORDER.format(x.ndim - 2))
    outputs = [Meta.contiguous_of(y.shape, y.dtype, where) for y in (x, grid)]
    return Signature(tuple(outputs), (grad, x, grid), params)


class Gradients:
    """What one launch adds up: of the field as rows of channels, and along each dimension of the places."""

    def __init__(self, field: Field, grad: Array, places: Sequence[Array]) -> None:
        self.field = field
        self.grad = np.moveaxis(grad, 1, -1)
        self.rows = np.zeros(field.rows.size, field.kind)
        self.slopes = [np.zeros_like(at) for at in places]

    def add(self, places: Sequence[Array], weight: Array, slopes: Sequence[Array]) -> None:
        """The share of one tap: it has a weight, and slopes, its weight's derivatives by the places."""
        flat, inside = self.field.find(places)
        flat, grad = flat[inside], self.grad[inside]
        at = flat[:, None] * self.field.channels + np.arange(self.field.channels)
        np.add.at(self.rows, at.reshape(-1), (grad * weight[inside][:, None]).reshape(-1))
        met = np.add.reduce(self.field.rows.take(flat, 0) * grad, axis=-1)
        for total, slope in zip(self.slopes, slopes, strict=True):
            total[inside] += met * slope[inside]

    def store(self, outputs: Sequence[Array], turns: Sequence[Array]) -> None:
        """`turns`: how far each place moves with the grid."""
        shape = (len(outputs[0]), *self.field.size, self.field.channels)
        np.copyto(outputs[0], np.moveaxis(self.rows.reshape(shape), -1, 1), casting="unsafe")
        for d, (slope, turn) in enumerate(zip(self.slopes, turns, strict=True)):
            np.copyto(outputs[1][..., -1 - d], slope * turn, casting="unsafe")


def _backward_host(launch: Launch) -> Body:
    mode, padding, align = launch.params[:3]
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)
    collect = {"nearest": _nearest_shares, "bilinear": _linear_shares, "bicubic": _cubic_shares}[mode]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, x, grid = map(widen, inputs)
        field = Field(x)
        places = _places(grid, field.size, align)
        number = grid.dtype.type
        scales = [number(n - 1 if align else n) / number(2) for n in field.size]
        found = Gradients(field, grad, places)

        def inside(at: Array, axis: int) -> Array:
            return _padded_place(at, field.size[axis], padding, align)

        collect(found, places, inside)
        if mode == "bicubic":  # its taps are padded one by one, its places are not
            turns = [np.full_like(at, s) for at, s in zip(places, scales, strict=True)]
        else:
            sizes = zip(places, field.size, scales, strict=True)
            turns = [_padded_turn(at, n, padding, align) * s for at, n, s in sizes]
        found.store(outputs, turns)

    return body


def _padded_turn(at: Array, n: int, padding: str, align: bool) -> Array:
    """The derivative of _padded_place: 0 where it is held at an end, -1 where it runs backwards."""
    turn = np.ones_like(at)
    if padding == "zeros":
        return turn
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        if span == 0:
            return np.zeros_like(at)
        away = at - at.dtype.type(low)
        odd = np.floor(np.abs(away) / at.dtype.type(span)) % 2 != 0
        turn[(away < 0) != odd] = -1
        at = _reflected(at, low, span)
    turn[~((at > 0) & (at < n - 1))] = 0
    return turn


def _nearest_shares(found: Gradients, places: list[Array], inside: Inside) -> None:
    places = [np.rint(inside(at, axis)) for axis, at in enumerate(places)]
    found.add(places, np.ones_like(places[0]), [np.zeros_like(at) for at in places])


def _linear_shares(found: Gradients, places: list[Array], inside: Inside) -> None:
    places = [inside(at, axis) for axis, at in enumerate(places)]
    low = [np.floor(at) for at in places]
    for corner in np.ndindex(*(2,) * len(places)):
        weights = [
            at - base if up else base + 1 - at for at, base, up in zip(places, low, corner, strict=True)
        ]
        slopes = [
            math.prod(weights[:d] + weights[d + 1 :], start=np.full_like(places[0], 1 if up else -1))
            for d, up in enumerate(corner)
        ]
        taps = [base + up for base, up in zip(low, corner, strict=True)]
        found.add(taps, math.prod(weights[1:], start=weights[0]), slopes)


def _cubic_shares(found: Gradients, places: list[Array], inside: Inside) -> None:
    low = [np.floor(at) for at in places]
    parts = [at - base for at, base in zip(places, low, strict=True)]
    (wy, wx), (sy, sx) = ([of(t) for t in parts] for of in (cubic_weights, cubic_slopes))
    for i, j in np.ndindex(4, 4):
        taps = [inside(low[0] + (i - 1), 0), inside(low[1] + (j - 1), 1)]
        found.add(taps, wy[i] * wx[j], [sy[i] * wx[j], wy[i] * sx[j]])


def _backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (x, _), how in _grid_samples(make, kind):
        dims = x.ndim - 2
        small, grid = make(1, 1, *(2,) * dims), make(1, *(1,) * dims, dims, low=-1.5, high=1.5)
        yield (make(1, 1, *(1,) * dims), small, grid), how


grid_sample_backward = define(
    Op(
        "grid_sample_backward", _backward_rule,
        Kernel("grid_sample_backward", _backward_host, _grid_flops, cuda=Routine("grid_sample_backward")), FLOATS,
        _backward_samples, flags=("deterministic",),
        derivative=Derivative(
            whole=gradient, name=lambda grad, params: f"GridSampler{grad.ndim - 2}DBackwardBackward0"
        ),
    )
)  # fmt: skip
