"""pad, and the rearrangements of channels and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flambeau.core.errors import argument_type
from flambeau.nn.functional.activation import require_tensor
from flambeau.ops.autocast_rules import FLOAT32_ON_CPU
from flambeau.ops.copy import checked_scalar
from flambeau.ops.shape.padding import pad as op
from flambeau.tensor import autocast
from flambeau.tensor.arguments.arg_errors import KINDS, Number
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.arguments.public import alias, function
from flambeau.tensor.arguments.typing import suggested_format
from flambeau.tensor.call import call
from flambeau.tensor.signatures import by_parser, signatures
from flambeau.tensor.tensor import Tensor


@signatures("constant_pad_nd(input: Tensor, pad: IntTuple, value: Number=)")
def constant_pad(input: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor:
    """Return `pad` in the mode "constant"."""
    if len(pad) % 2:
        raise RuntimeError(f"Length of pad must be even but instead it equals {len(pad)}")
    if len(pad) > 2 * input.dim():
        raise RuntimeError(
            "Length of pad should be no more than twice the number of dimensions of the input. Pad length is "
            f"{len(pad)}while the input has {input.dim()}dimensions."
        )
    number = value.item() if isinstance(value, Tensor | np.generic) else value
    return call(op, (input, checked_scalar(number, input.dtype)), ("constant", _pairs(pad, input.dim())))


def _pairs(pad: Sequence[int], ndim: int) -> tuple[tuple[int, int], ...]:
    """Return a pair (before, after) for each dimension, from `pad`, which begins with the last dimension."""
    given = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    return (*[(0, 0)] * (ndim - len(given)), *reversed(given))


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """Pad (or crop) the trailing dimensions by (left, right, top, bottom, ...), beginning with the last dimension.

    Args:
        mode: "constant" (with `value`), or for the last one to three dimensions "reflect", "replicate" or "circular".
    """
    if not isinstance(pad, (list, tuple)):
        raise TypeError(argument_type("pad", "pad", 2, "tuple of ints", pad))
    require_tensor(input, "pad")
    if not isinstance(mode, str):
        raise TypeError(argument_type("pad", "mode", 3, "str", mode))
    if {*map(type, pad)} != {int}:
        pad = ints_of(pad, "pad", "pad", 2)
    if value is not None and not KINDS["float"].fits(value):
        raise TypeError(argument_type("pad", "value", 4, "float", value))
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(pad) > 2 * input.dim():
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and input of dimension {input.dim()}"
        )
    if mode == "constant":
        return constant_pad(input, pad, 0 if value is None else float(value))
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    dims = len(pad) // 2
    if not 1 <= dims <= 3 or input.dim() not in (dims + 1, dims + 2):
        raise NotImplementedError(
            f"Padding size {len(pad)} is not supported for {input.dim()}D input tensor.\n"
            "Supported combinations for non-constant padding:\n"
            "  - 2D or 3D input: padding size = 2 (pads last dimension)\n"
            "  - 3D or 4D input: padding size = 4 (pads last 2 dimensions)\n"
            "  - 4D or 5D input: padding size = 6 (pads last 3 dimensions)"
        )
    if mode != "circular" and not all(input.shape[input.dim() - dims - 1 :]):
        raise RuntimeError(
            f"Expected {dims + 1}D or {dims + 2}D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(input.shape)}"
        )
    if autocast.threads and mode != "circular" and (mode, dims) != ("reflect", 3):
        (input,) = autocast.cast(FLOAT32_ON_CPU, input)
    if mode == "circular" and min(pad) < 0:  # circular padding must not read elements that are cropped
        input = constant_pad(input, [min(n, 0) for n in pad])
        pad = [max(n, 0) for n in pad]
    return call(op, (input,), (mode, _pairs(pad, input.dim())))


@by_parser
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Return (..., C r^2, H, W) to (..., C, H r, W r)."""
    r = upscale_factor
    if input.dim() < 3:
        raise RuntimeError(
            f"pixel_shuffle expects input to have at least 3 dimensions, but got input with {input.dim()} dimension(s)"
        )
    if r <= 0:
        raise RuntimeError(f"pixel_shuffle expects a positive upscale_factor, but got {r}")
    *lead, channels, height, width = input.shape
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={channels} is not divisible by {r * r}"
        )
    n = len(lead)
    split = input.reshape(*lead, channels // (r * r), r, r, height, width)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return _reshape_in_format(
        input, split.permute(order), (*lead, channels // (r * r), height * r, width * r)
    )


@by_parser
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Return (..., C, H r, W r) to (..., C r^2, H, W)."""
    r = downscale_factor
    if input.dim() < 3:
        raise RuntimeError(
            "pixel_unshuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.dim()} dimension(s)"
        )
    if r <= 0:
        raise RuntimeError(f"pixel_unshuffle expects a positive downscale_factor, but got {r}")
    *lead, channels, height, width = input.shape
    for name, size in (("height", height), ("width", width)):
        if size % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but input.size({name}) is not: "
                f"{size} and {r}"
            )
    n = len(lead)
    split = input.reshape(*lead, channels, height // r, r, width // r, r)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return _reshape_in_format(input, split.permute(order), (*lead, channels * r * r, height // r, width // r))


@by_parser
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Return channels of `groups` groups interleaved: (N, g k, ...) read as (N, k g, ...)."""
    if input.dim() < 3:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(input.shape)}"
        )
    if groups <= 0:
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{groups}"
        )
    n, channels, *rest = input.shape
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    split = input.reshape(n, groups, channels // groups, *rest)
    return _reshape_in_format(input, split.transpose(1, 2), input.shape)


def _reshape_in_format(input: Tensor, split: Tensor, shape: Any) -> Tensor:
    """Return `split` in this shape. As in PyTorch, the result keeps `channels_last` on the CPU but not on GPUs."""
    found = split.reshape(shape)
    if not (input.meta.channels_last and input.meta.device.type != "cuda"):
        return found
    return found.clone(memory_format=suggested_format(input.meta))


def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Return `channel_shuffle`, by the name of PyTorch's kernel."""
    return channel_shuffle(input, groups)


def assert_int_or_pair(arg: int | Sequence[int], arg_name: str, message: str) -> None:
    """Raise AssertionError, with the name in the message, unless an argument is an integer or has two elements."""
    if not (isinstance(arg, int) or len(arg) == 2):
        raise AssertionError(message.format(arg_name))


for _public in (pixel_shuffle, pixel_unshuffle, channel_shuffle, native_channel_shuffle):
    function(_public)
alias("constant_pad_nd", constant_pad, as_method=False)
