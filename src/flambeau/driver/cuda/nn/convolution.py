"""Convolutions and their gradients, by cuDNN if it is installed, else as matrix products over columns.

A convolution involves three tensors: the broad side (N, C, spatial ...), from which windows are taken; the narrow side
(N, O, windows ...); and the weight (O, C / groups, kernel ...). Each operator computes one of them from the other two:
a convolution the narrow side, a transposed one the broad side, and their gradients the others.

cuDNN computes it for real tensors if it has a deterministic algorithm and `torch.backends.cudnn.enabled` is True.
Otherwise the windows are copied out as columns (N, groups, taps, windows), which cuBLASLt multiplies; the broad side is
the sum of the columns that a product computed. A step processes some samples at a time, to limit the memory of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from flambeau.core.dtype import int64
from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import contiguous_strides
from flambeau.driver.cuda.codegen.kernel_steps import Array, KernelSteps, device_only
from flambeau.driver.cuda.codegen.sliding_windows import Lattice
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries import cudnn
from flambeau.driver.cuda.linalg.products import ADDMM, MATMUL
from flambeau.driver.cuda.nn.im2col import COLUMNS, OVERLAPS
from flambeau.driver.protocol import Expression, Kernel, Launch

_COLUMN_BYTES = 512 << 20  # bytes of columns processed together, at least one sample

_LARGE = 1 << 31  # elements of a tensor that many of cuDNN's engines cannot count

_ONCE = ((int64, 1), (int64, 1))  # cuDNN's factors beta and alpha


@dataclass(frozen=True, slots=True)
class ConvolutionOperands:
    """The three contiguous tensors of a convolution, the lattice, the bias if there is one, and the TF32 flag."""

    broad: Array
    narrow: Array
    weight: Array
    lattice: Lattice
    groups: int
    tf32: bool
    bias: Array | None = None


# -- what is asked for --------------------------------------------------------------------------------------------


def convolution(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Enqueue a convolution. Inputs: x, weight and maybe a bias. Params: the geometry and flags."""
    steps = KernelSteps(launch, device, driver)
    out, (x, weight, *bias) = steps.outputs[0], steps.inputs
    turned = launch.params[0].transposed
    broad, narrow = (out, x) if turned else (x, out)
    return _build_steps(steps, broad, narrow, weight, bias[0] if bias else None)


def backward_input(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Enqueue the input's gradient. Inputs: grad and weight; params: the lattice, the input's size, flags."""
    steps = KernelSteps(launch, device, driver)
    out, (grad, weight) = steps.outputs[0], steps.inputs
    broad, narrow = (grad, out) if launch.params[0].transposed else (out, grad)
    return _build_steps(steps, broad, narrow, weight)


def backward_weight(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Enqueue the weight's gradient. Inputs: grad and x; params: the lattice, the kernel's size, flags."""
    steps = KernelSteps(launch, device, driver)
    out, (grad, x) = steps.outputs[0], steps.inputs
    broad, narrow = (grad, x) if launch.params[0].transposed else (x, grad)
    return _build_steps(steps, broad, narrow, out)


def _build_steps(
    steps: KernelSteps, broad: Array, narrow: Array, weight: Array, bias: Array | None = None
) -> KernelSteps:
    """Add the steps that compute the launch's output from the two other tensors, which are made contiguous first."""
    target = steps.outputs[0]
    inner = [_inside(steps, x, x is target) for x in (broad, narrow, weight)]
    how, (enabled, tf32) = steps.launch.params[0], steps.launch.params[-2:]
    size, count, kernel = (x.meta.shape[2:] for x in inner)
    lattice = Lattice(size, count, kernel, how.stride, how.padding, how.dilation)
    meeting = ConvolutionOperands(inner[0], inner[1], inner[2], lattice, how.groups, bool(tf32), bias)
    name = "broad" if target is broad else "narrow" if target is narrow else "weight"
    if not (enabled and _by_cudnn(steps, meeting, name)):
        _BY_COLUMNS[name](steps, meeting)
    made: Array = getattr(meeting, name)
    if made is not target:
        steps.copy(target, made)
    return steps


def _inside(steps: KernelSteps, x: Array, is_target: bool) -> Array:
    """Return the array if it is contiguous. Otherwise return a contiguous copy of an input, or memory for an output."""
    if x.meta.strides == contiguous_strides(x.meta.shape) or not x.meta.numel:
        return x
    dense = steps.dense(x.meta.shape, x.meta.dtype)
    if not is_target:
        steps.copy(dense, x)
    return dense


# -- by cuDNN -----------------------------------------------------------------------------------------------------

_PLUS = Kernel("plus", device_only, cuda=Expression("to<T>(widen(a) + widen(b))"))


def _by_cudnn(steps: KernelSteps, meeting: ConvolutionOperands, target: str) -> bool:
    """Add cuDNN's steps. Returns False, without adding any, if cuDNN is not installed or has no engine."""
    found = _routine(steps, meeting, target)
    if found is None:
        return False
    steps.on_close(found.close)
    first, second, third = [getattr(meeting, name).place for name in (*found.order, target)]
    device = steps.device
    steps.call(
        lambda places, native, stream: found.launch(
            places[first], places[second], places[third], device, native
        )
    )
    out: Array = getattr(meeting, target)
    if meeting.bias is not None:
        shape = out.meta.shape
        along = (0, *meeting.bias.meta.strides, *(0,) * (len(shape) - 2))
        steps.run(_PLUS, out, out, replace(meeting.bias, meta=meeting.bias.meta.with_(shape, along)))
    return True


def _routine(steps: KernelSteps, meeting: ConvolutionOperands, target: str) -> cudnn.Convolution | None:
    sides = {name: getattr(meeting, name).meta for name in cudnn.TARGETS}
    x, kind = meeting.lattice, meeting.weight.meta.dtype
    regular = x.regular() and kind in cudnn.DATA and all(0 < side.numel < _LARGE for side in sides.values())
    library = cudnn.of(steps.device) if regular else None
    if library is None:
        return None
    shapes = {name: side.shape for name, side in sides.items()}
    geometry = (x.padding, x.stride, x.dilation)
    try:
        return cudnn.Convolution(library, kind, target, shapes, geometry, meeting.tf32)
    except NotSupportedError:
        return None


# -- by columns ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Some samples of a convolution: their number, both sides, and columns in temporary memory."""

    count: int
    broad: Array
    narrow: Array
    columns: Array


class _Columns:
    """The common part of convolutions by columns (samples, groups, taps, windows), where taps are those of one
    group.
    """

    def __init__(self, steps: KernelSteps, meeting: ConvolutionOperands) -> None:
        self.steps, self.meeting = steps, meeting
        weight = meeting.weight.meta
        self.groups, self.outer = meeting.groups, weight.shape[0] // meeting.groups
        self.taps, self.windows = prod(weight.shape[1:]), prod(meeting.lattice.count)
        self.kind = weight.dtype
        self.params = (meeting.tf32,)

        x = meeting.lattice
        # Adjacent windows of one element: the broad side equals its columns.
        self.plain = x.taps == 1 and {*x.stride} == {1} and {*x.padding} == {0} and [*x.size] == [*x.count]

    def parts(self) -> list[_Part]:
        samples = self.meeting.broad.meta.shape[0]
        each = max(self.groups * self.taps * self.windows * self.kind.itemsize, 1)
        step = max(1, min(samples, _COLUMN_BYTES // each))
        room = self.steps.dense((step, self.groups, self.taps, self.windows), self.kind)
        return [
            self.part(start, min(step, samples - start), room) for start in range(0, max(samples, 1), step)
        ]

    def whole(self) -> _Part:
        """Return all samples as one part, for a broad side that equals its columns."""
        return self.part(0, self.meeting.broad.meta.shape[0], self.meeting.broad)

    def part(self, start: int, count: int, room: Array) -> _Part:
        broad, narrow = (_samples(x, start, count) for x in (self.meeting.broad, self.meeting.narrow))
        columns = self.with_shape(room, (count, self.groups, self.taps, self.windows))
        return _Part(count, broad, narrow, columns)

    def with_shape(self, x: Array, shape: tuple[int, ...], strides: Sequence[int] | None = None) -> Array:
        strides = contiguous_strides(shape) if strides is None else strides
        return replace(x, meta=x.meta.with_(shape, tuple(strides)))

    def weights(self, count: int, transposed: bool = False) -> Array:
        """Return the weight as matrices (count, groups, O / groups, taps), equal for all samples."""
        outer, taps = self.outer, self.taps
        shape, strides = (outer, taps), (taps, 1)
        if transposed:
            shape, strides = shape[::-1], strides[::-1]
        whole = (0 if count > 1 else self.groups * outer * taps, outer * taps, *strides)
        return self.with_shape(self.meeting.weight, (count, self.groups, *shape), whole)

    def multiply(self, out: Array, a: Array, b: Array, added: Array | None = None) -> None:
        if added is None:
            self.steps.run_all(MATMUL, (out,), (a, b), self.params)
        else:
            self.steps.run_all(ADDMM, (out,), (added, a, b), self.params, _ONCE)

    def bias(self, count: int, channels: int, places: int) -> Array | None:
        """Return the bias, if there is one, as (count, groups, channels of a group, positions)."""
        bias = self.meeting.bias
        if bias is None:
            return None
        (step,) = bias.meta.strides
        shape = (count, self.groups, channels // self.groups, places)
        return self.with_shape(bias, shape, (0, channels // self.groups * step, step, 0))


def _samples(x: Array, start: int, count: int) -> Array:
    shape = x.meta.shape
    each = prod(shape[1:]) * x.meta.itemsize
    return Array(
        x.place, x.meta.with_((count, *shape[1:]), contiguous_strides(shape)), x.offset + start * each
    )


def _correlate(steps: KernelSteps, meeting: ConvolutionOperands) -> None:
    """Compute the narrow side (the result of a convolution): the weight times the columns."""
    by = _Columns(steps, meeting)
    for part in [by.whole()] if by.plain else by.parts():
        if not by.plain:
            columns = by.with_shape(part.columns, (part.count, by.groups * by.taps, by.windows))
            steps.run_all(COLUMNS, (columns,), (part.broad,), (meeting.lattice,))
        out = by.with_shape(part.narrow, (part.count, by.groups, by.outer, by.windows))
        added = by.bias(part.count, by.groups * by.outer, by.windows)
        by.multiply(out, by.weights(part.count), part.columns, added)


def _spread(steps: KernelSteps, meeting: ConvolutionOperands) -> None:
    """Compute the broad side (the input of a convolution): the transposed weight times the narrow side.

    Products are summed where columns overlap.
    """
    by = _Columns(steps, meeting)
    channels, bias = meeting.broad.meta.shape[1], meeting.bias
    for part in [by.whole()] if by.plain else by.parts():
        narrow = by.with_shape(part.narrow, (part.count, by.groups, by.outer, by.windows))
        weight = by.weights(part.count, transposed=True)
        if by.plain:
            by.multiply(part.columns, weight, narrow, by.bias(part.count, channels, by.windows))
            continue
        by.multiply(part.columns, weight, narrow)
        columns = by.with_shape(part.columns, (part.count, by.groups * by.taps, by.windows))
        inputs = (columns,) if bias is None else (columns, bias)
        steps.run_all(OVERLAPS, (part.broad,), inputs, (meeting.lattice,))


def _weigh(steps: KernelSteps, meeting: ConvolutionOperands) -> None:
    """Compute the weight's gradient: the narrow side times the transposed columns, over all samples and windows.

    The columns are laid out as (groups * taps, samples * windows), and the narrow side accordingly.
    """
    by = _Columns(steps, meeting)
    out = by.with_shape(meeting.weight, (by.groups, by.outer, by.taps))
    rows, channels, parts = by.groups * by.outer, by.groups * by.taps, by.parts()
    side = steps.dense((rows, parts[0].count * by.windows), by.kind)
    for number, part in enumerate(parts):
        deep = part.count * by.windows
        columns = by.with_shape(part.columns, (part.count, channels, by.windows), (by.windows, deep, 1))
        steps.run_all(COLUMNS, (columns,), (part.broad,), (meeting.lattice,))
        narrow = by.with_shape(part.narrow, (part.count, rows, by.windows))
        steps.copy(by.with_shape(side, narrow.meta.shape, (by.windows, deep, 1)), narrow)
        left = by.with_shape(side, (by.groups, by.outer, deep))
        right = by.with_shape(columns, (by.groups, deep, by.taps), (by.taps * deep, 1, deep))
        by.multiply(out, left, right, out if number else None)


_BY_COLUMNS = {"narrow": _correlate, "broad": _spread, "weight": _weigh}
