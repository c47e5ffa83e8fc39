"""Sampling at the positions of a grid, with interpolation, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import AutocastRule
from flambeau.ops.nn.interpolation import cubic_slopes, cubic_weights
from flambeau.ops.nn.sampling_gradients import gradient
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS
from flambeau.ops.work import element_work

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

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        field, grid = Field(widen(inputs[0])), widen(inputs[1])
        batch, *spatial, dims = grid.shape
        grid, of = grid.reshape(-1, dims), np.repeat(np.arange(batch), math.prod(spatial))
        out = np.empty((len(field.planes), len(grid)), field.planes.dtype)
        for at in range(0, len(grid), _BLOCK):
            some = slice(at, at + _BLOCK)
            taps = _taps(mode, _places(grid[some], field.size, align), field.size, padding, align)
            out[:, some] = field.read(of[some], taps) if mode != "nearest" else field.nearest(of[some], taps)
        np.copyto(outputs[0], np.moveaxis(out.reshape(-1, batch, *spatial), 0, 1), casting="unsafe")

    return body


_BLOCK = 1 << 13  # positions processed together, so that temporaries stay in a core's cache


def _places(grid: Array, size: Sequence[int], align: bool) -> list[Array]:
    """Return the positions of the grid along each spatial dimension. The grid's last dimension has the reverse
    order.
    """
    return [_to_positions(grid[..., -1 - d], n, align) for d, n in enumerate(size)]


class Tap(NamedTuple):
    """One of the elements along a dimension that each position reads: its index, weight, and the weight's
    derivative.
    """

    at: Array
    weight: Array
    slope: Array


class Field:
    """An array (N, C, spatial ...) as one plane for each channel. Each plane ends with a zero, read by positions
    outside.
    """

    def __init__(self, x: Array) -> None:
        self.size = x.shape[2:]
        count, channels = x.shape[:2]
        self.planes = np.zeros((channels, count * math.prod(self.size) + 1), x.dtype)
        self.planes[:, :-1] = np.moveaxis(x, 1, 0).reshape(channels, self.planes.shape[1] - 1)

    def combine_taps(
        self, of: Array, taps: Sequence[Sequence[Tap]]
    ) -> Iterator[tuple[Array, tuple[Tap, ...]]]:
        """Yield, for each combination of taps, the flat index of its element in a plane (-1: outside) and the taps.

        Args:
            of: Index of the sample that each position reads.
        """
        steps = [math.prod(self.size[d + 1 :]) for d in range(len(self.size))]
        first = of * math.prod(self.size)
        for each in product(*[
            [_to_offsets(tap, n, step) for tap in along] for along, n, step in zip(taps, self.size, steps, strict=True)
        ]):  # fmt: skip
            flat = first
            for tap in each:
                flat = flat + tap.at
            yield np.maximum(flat, -1, out=flat), each

    def read(self, of: Array, taps: Sequence[Sequence[Tap]]) -> Array:
        """Return the channels (C, positions), where each value is the sum over the position's taps."""
        total = np.zeros((len(self.planes), len(of)), self.planes.dtype)
        for flat, each in self.combine_taps(of, taps):
            found = self.planes.take(flat, 1)
            found *= _product([tap.weight for tap in each])
            total += found
        return total

    def nearest(self, of: Array, taps: Sequence[Sequence[Tap]]) -> Array:
        """Return the element at each position for modes with a single tap of weight 1."""
        ((flat, _),) = self.combine_taps(of, taps)
        return self.planes.take(flat, 1)


_OUTSIDE = -(1 << 60)  # so negative that no offset of other dimensions makes it valid


def _to_offsets(tap: Tap, n: int, step: int) -> Tap:
    """Return a tap whose index is multiplied by `step`, the stride of a dimension of n elements; -1 if outside."""
    at = tap.at.astype(np.int64) * step
    np.copyto(at, _OUTSIDE, where=(tap.at < 0) | (tap.at > n - 1))
    return tap._replace(at=at)


def _product(parts: Sequence[Array]) -> Array:
    return math.prod(parts[1:], start=parts[0])


def _to_positions(at: Array, n: int, align: bool) -> Array:
    """Convert coordinates in [-1, 1] to positions among n elements."""
    number = at.dtype.type
    return (at + 1) / number(2) * number(n - 1) if align else ((at + 1) * number(n) - 1) / number(2)


def _padded_place(at: Array, n: int, padding: str, align: bool) -> Array:
    if padding == "zeros":
        return at
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        at = _reflect(at, low, span)
    return np.where(np.isnan(at), at.dtype.type(0), np.clip(at, 0, n - 1))


def _reflect(at: Array, low: float, span: float) -> Array:
    number = at.dtype.type
    if span == 0:
        return np.zeros_like(at)
    away = np.abs(at - number(low))
    turns, extra = np.floor(away / number(span)), np.fmod(away, number(span))
    return np.where(turns % 2 == 0, extra + number(low), number(span) - extra + number(low))


def _taps(mode: str, places: list[Array], size: Sequence[int], padding: str, align: bool) -> list[list[Tap]]:
    """Return the taps of positions along each dimension. Bicubic mode pads each tap, other modes pad positions."""
    found = []
    for at, n in zip(places, size, strict=True):
        if padding == "zeros":
            # positions further outside are equivalent; NaN counts as outside
            at = np.fmin(np.fmax(at, -4), n + 3)
        if mode == "bicubic":
            low = np.floor(at)
            shares = zip(range(-1, 3), cubic_weights(at - low), cubic_slopes(at - low), strict=True)
            found.append([Tap(_padded_place(low + i, n, padding, align), w, s) for i, w, s in shares])
            continue
        at = _padded_place(at, n, padding, align)
        one = np.ones_like(at)
        if mode == "nearest":
            found.append([Tap(np.rint(at), one, np.zeros_like(at))])
        else:
            low = np.floor(at)
            found.append([Tap(low, low + 1 - at, -one), Tap(low + 1, at - low, one)])
    return found


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
        Kernel(
            "grid_sample",
            _grid_host,
            _grid_flops,
            cuda=Routine("nn.sampling:grid_sample"),
            work=element_work.samples_of_channels,
        ),
        FLOATS,
        _grid_samples,
        derivative=Derivative(
            whole=_grid_back, name=lambda metas, params: f"GridSampler{metas[0].ndim - 2}DBackward0"
        ),
        autocast=AutocastRule("widest", "float32"),
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
    """Infer the results. Params: those of grid_sample, then the flag of deterministic algorithms."""
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


def _add_gradients(
    field: Field, grad: Array, of: Array, taps: Sequence[Sequence[Tap]]
) -> tuple[Array, list[Array]]:
    """Return the gradients of planes and positions, given the gradients of the channels (C, positions)."""
    planes, slopes = np.zeros_like(field.planes), [np.zeros(len(of), grad.dtype) for _ in taps]
    first = np.arange(len(planes))[:, None] * planes.shape[1]
    for flat, each in field.combine_taps(of, taps):
        weights = [tap.weight for tap in each]
        at = first + np.where(flat < 0, planes.shape[1] - 1, flat)
        np.add.at(planes.reshape(-1), at.reshape(-1), (grad * _product(weights)).reshape(-1))
        met = np.add.reduce(field.planes.take(flat, 1) * grad, axis=0)
        met[flat < 0] = 0
        for d, total in enumerate(slopes):
            total += met * _product([*weights[:d], each[d].slope, *weights[d + 1 :]])
    return planes[:, :-1], slopes


def _backward_host(launch: Launch) -> Body:
    mode, padding, align = launch.params[:3]
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, x, grid = map(widen, inputs)
        field = Field(x)
        batch, *spatial, dims = grid.shape
        places = _places(grid.reshape(-1, dims), field.size, align)
        taps = _taps(mode, places, field.size, padding, align)
        of = np.repeat(np.arange(batch), math.prod(spatial))
        planes, slopes = _add_gradients(
            field, np.moveaxis(grad, 1, 0).reshape(len(field.planes), len(of)), of, taps
        )
        np.copyto(
            outputs[0], np.moveaxis(planes.reshape(len(planes), batch, *field.size), 0, 1), casting="unsafe"
        )
        for d, (at, n, slope) in enumerate(zip(places, field.size, slopes, strict=True)):
            if mode != "bicubic":  # for bicubic, each tap is padded by itself, not the position
                slope = slope * _padded_turn(at, n, padding, align)
            slope = slope * (slope.dtype.type(n - 1 if align else n) / slope.dtype.type(2))
            np.copyto(outputs[1][..., -1 - d], slope.reshape(batch, *spatial), casting="unsafe")

    return body


def _padded_turn(at: Array, n: int, padding: str, align: bool) -> Array:
    """Return the derivative of `_padded_place`: 0 at a clamped end, -1 in a reflected part, else 1."""
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
        at = _reflect(at, low, span)
    turn[~((at > 0) & (at < n - 1))] = 0
    return turn


def _backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (x, _), how in _grid_samples(make, kind):
        dims = x.ndim - 2
        small, grid = make(1, 1, *(2,) * dims), make(1, *(1,) * dims, dims, low=-1.5, high=1.5)
        yield (make(1, 1, *(1,) * dims), small, grid), how


grid_sample_backward = define(
    Op(
        "grid_sample_backward",
        _backward_rule,
        Kernel(
            "grid_sample_backward",
            _backward_host,
            _grid_flops,
            cuda=Routine("nn.sampling:grid_sample_backward"),
        ),
        FLOATS,
        _backward_samples,
        flags=("deterministic",),
        derivative=Derivative(
            whole=gradient, name=lambda metas, params: f"GridSampler{metas[0].ndim - 2}DBackwardBackward0"
        ),
    )
)
