"""The work of convolutions and their gradients, and the copies in other layouts that they take."""

from __future__ import annotations

import math

from flambeau.core.frozen import Record
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch, MatrixProduct, Work, stream_work
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND, MULTIPROCESSORS
from flambeau.ops.work.product_work import first_operands

# Note [The time of a convolution]
# Problem: cuDNN chooses among many kernels by shape, without measuring unless `cudnn.benchmark` is set.
# Rule: A convolution is a product (samples x places) @ (channels x taps) by features, in tiles of the result that
# keep the whole depth. Of the kinds of tiles the fastest counts. A tile alone on its multiprocessor waits in each step.
# Kernels for half precision on Hopper need channels last and multiples of eight channels. cuDNN copies operands that
# differ into a workspace, and the result out of it. Kernels for float32 need channels first, and copy if they are last.
# Consequences: Small convolutions in half precision are slower than in float32, and take more memory.

_START = 1.0  # microseconds beyond the start of a kernel
_COPY, _PAD = 2.3, 10.0  # microseconds of a copy in another layout, and of padded channels
_COPY_PASSES = 2.0  # how often a copy moves its bytes
_CHANNELS = 8
_FEW_CHANNELS = 4  # that half precision computes directly
_DEPTHWISE = 0.62  # share of the memory's rate
_DEPTHWISE_THREADS, _DEPTHWISE_STEP = 256, 0.1  # of a block for a weight's gradient; microseconds of a step
_TF32_FASTER = 4.0
_SPLIT_SHARE = 0.7  # of a plain product's rate, where the depth is split


class Tile(Record):
    """A kind of tile of a convolution's result. See Note [The time of a convolution].

    Attributes:
        high: Number of places.
        wide: Number of features.
        busy: Microseconds of a unit of the depth on a multiprocessor with several tiles.
        alone: The same on one with a single tile.
        end: Microseconds of a tile beyond its depth.
    """

    high: int
    wide: int
    busy: float
    alone: float
    end: float


_SINGLE = (
    Tile(32, 32, 0.0135, 0.025, 0.3),
    Tile(128, 32, 0.044, 0.044, 0.6),
    Tile(256, 64, 0.102, 0.102, 1.0),
)
_SINGLE_LARGE = (Tile(32, 32, 0.020, 0.043, 0.3), *_SINGLE[1:])  # of 7 x 7 taps and more
_HALF = (
    Tile(64, 64, 0.0024, 0.002, 1.2),
    Tile(128, 128, 0.008, 0.002, 1.2),
    Tile(256, 128, 0.0128, 0.002, 1.2),
)


def convolution(launch: Launch) -> Work:
    """Return the work of a convolution. Inputs are x, weight and a bias or none."""
    x, weight = first_operands(launch)
    return _convolution(launch, x, weight, launch.outputs[0], "out")


def convolution_of_input(launch: Launch) -> Work:
    """Return the work of a convolution's gradient with respect to its input. Inputs are grad and weight."""
    grad, weight = first_operands(launch)
    return _convolution(launch, launch.outputs[0], weight, grad, "input")


def convolution_of_weight(launch: Launch) -> Work:
    """Return the work of a convolution's gradient with respect to its weight. Inputs are grad and x."""
    grad, x = first_operands(launch)
    return _convolution(launch, x, launch.outputs[0], grad, "weight")


def _convolution(launch: Launch, broad: Meta, weight: Meta, narrow: Meta, result: str) -> Work:
    """Return the work of a convolution. See Note [The time of a convolution].

    Args:
        launch: The launch.
        broad: The tensor from which windows are taken.
        weight: The weight.
        narrow: The tensor with one element for each window.
        result: The tensor that is computed, "out", "input" or "weight".
    """
    if launch.params[0].transposed:
        narrow, broad = broad, narrow
        result = {"out": "input", "input": "out"}.get(result, result)
    if not (broad.numel and weight.numel and narrow.numel):
        return stream_work(launch)
    channels, features = weight.shape[1], weight.shape[0]
    taps, places = math.prod(weight.shape[2:]), narrow.shape[0] * math.prod(narrow.shape[2:])
    groups = max(broad.shape[1] // channels, 1)
    cycles = _START * CYCLES_OF_A_MICROSECOND
    if groups > 1 and channels == 1:
        return _depthwise(launch, broad, narrow, result, taps)
    half, each, rate = broad.itemsize == 2, max(features // groups, 1), launch.kernel.rate(launch)
    sides = {
        "out": (places, each, channels * taps),
        "input": (broad.shape[0] * math.prod(broad.shape[2:]), channels, each * taps),
        "weight": (each, channels * taps, places),
    }[result]
    chain = 0.0
    if result != "weight":  # whose depth is split among tiles, as that of other products
        tiles = _HALF if half else _SINGLE_LARGE if taps >= 49 else _SINGLE
        chain = min([_tile_microseconds(tile, groups, *sides) for tile in tiles])
    share = _SPLIT_SHARE if result == "weight" else 1.4 if half else 1.0
    copies = copied_operands(broad, weight, narrow)
    extra = len(copies) * _COPY + (_PAD if half and copies and (channels % 8 or features % 8) else 0.0)
    return Work(
        launch.nbytes + _COPY_PASSES * 2 * sum(copies), launch.nbytes, max(narrow.numel, weight.numel), 0.0,
        cycles + extra * CYCLES_OF_A_MICROSECOND, product=MatrixProduct(groups, *sides, rate, 16, share),
        chain=chain / (_TF32_FASTER if rate == "tf32" else 1.0) * CYCLES_OF_A_MICROSECOND,
    )  # fmt: skip


def _depthwise(launch: Launch, broad: Meta, narrow: Meta, result: str, taps: int) -> Work:
    """Return the work of a depthwise convolution, which PyTorch's own kernels compute.

    A thread computes an element of the output or of the input's gradient. A block sums an element of the weight's
    gradient, over all places of its channel.
    """
    count = {"out": narrow.numel, "input": broad.numel, "weight": narrow.numel * taps}[result]
    each = {"out": 90.0 + 19.0 * taps, "input": 110.0 + 32.0 * taps, "weight": 66.0}[result]
    steps = narrow.numel / max(narrow.shape[1], 1) / _DEPTHWISE_THREADS if result == "weight" else 0.0
    return Work(
        launch.nbytes / _DEPTHWISE, launch.nbytes, count, each * count, _START * CYCLES_OF_A_MICROSECOND,
        chain=steps * _DEPTHWISE_STEP * CYCLES_OF_A_MICROSECOND,
    )  # fmt: skip


def _tile_microseconds(tile: Tile, groups: int, places: int, features: int, depth: int) -> float:
    """Return the microseconds of all tiles of a kind."""
    count = groups * -(-places // tile.high) * -(-features // tile.wide)
    waves = -(-count // MULTIPROCESSORS) if tile.high > 32 else count / MULTIPROCESSORS
    return max(waves * depth * tile.busy, depth * tile.alone) + max(count / MULTIPROCESSORS, 1.0) * tile.end


def copied_operands(broad: Meta, weight: Meta, narrow: Meta) -> list[int]:
    """Return the bytes of the copies of a convolution's operands in the layout of its kernel."""
    taps = math.prod(weight.shape[2:])
    if broad.ndim != 4 or broad.shape[1] != weight.shape[1] or broad.itemsize not in (2, 4):
        return []
    is_last = broad.strides[1] == 1 and broad.shape[1] > 1
    if broad.itemsize == 4:
        return [broad.nbytes, weight.nbytes, narrow.nbytes] if is_last and taps > 1 else []
    features, channels = weight.shape[:2]
    odd = channels % _CHANNELS != 0
    if channels <= _FEW_CHANNELS or (taps == 1 and odd and not is_last):
        return []
    grown = [-(-count // _CHANNELS) * _CHANNELS for count in (channels, features)]
    sizes = {
        "broad": broad.nbytes // channels * grown[0], "weight": 2 * taps * grown[0] * grown[1],
        "narrow": narrow.nbytes // features * grown[1],
    }  # fmt: skip
    wide = features % _CHANNELS != 0
    needed = {
        "broad": odd or not is_last,
        "weight": odd or wide or not is_last,
        "narrow": wide or not is_last,
    }
    return [sizes[name] for name, is_copied in needed.items() if is_copied]
