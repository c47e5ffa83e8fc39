"""Linear maps and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.errors import argument_type
from flambeau.nn.functional.activation import require_tensor
from flambeau.nn.functional.padding import constant_pad
from flambeau.ops.autocast_rules import LOWER, WIDEST_ON_CUDA
from flambeau.ops.nn import convolution as ops
from flambeau.ops.nn.convolution import Geometry
from flambeau.tensor import autocast
from flambeau.tensor.arguments.arg_errors import IntOrTuple
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.arguments.integers import int_or_none
from flambeau.tensor.arguments.public import function
from flambeau.tensor.call import call
from flambeau.tensor.functions.matmul import addmm, matmul
from flambeau.tensor.signatures import by_parser, signatures
from flambeau.tensor.tensor import Tensor

Ints = tuple[int, ...]
_MOST = (1 << 31) - 1


@by_parser
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input (..., in) @ weight (out, in) transposed, plus bias (out)."""
    require_tensor(weight, "linear", "weight", 2)
    if autocast.threads:
        input, weight, bias = autocast.cast(LOWER, input, weight, bias)
    if bias is not None and require_tensor(input, "linear").meta.ndim == 2:
        return addmm(bias, input, weight.t())
    if (
        bias is not None
        and bias.meta.ndim == 1
        and input.dim() > 0
        and input.is_contiguous()
        and input.shape[-1] == weight.shape[1]
    ):
        rows = input.view(math.prod(input.shape[:-1]), input.shape[-1])
        flat = addmm(bias, rows, weight.t())
        return flat.view(*input.shape[:-1], flat.shape[-1])
    product = matmul(require_tensor(input, "linear"), weight.t())
    return product if bias is None else product + bias


@by_parser
@function
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return sum over i, j of input1[..., i] weight[o, i, j] input2[..., j], plus bias (o)."""
    if autocast.threads:
        return autocast.call_cast(WIDEST_ON_CUDA, _bilinear, (input1, input2, weight, bias))
    return _bilinear(input1, input2, weight, bias)


def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if input1.dim() != input2.dim():
        raise RuntimeError(
            f"bilinear(): input dimensions do not match: got {input1.dim()} and {input2.dim()}"
        )
    if not (input1.dtype is input2.dtype is weight.dtype) or weight.ndim != 3 or not input1.ndim:
        raise RuntimeError(
            f"bilinear(): expected tensors of one dtype and a weight of three dimensions, got {input1.dtype}, "
            f"{input2.dtype} and {weight.dtype} {list(weight.shape)}"
        )
    for at, (x, size) in enumerate(((input1, weight.shape[1]), (input2, weight.shape[2]))):
        if input1.shape[:-1] != input2.shape[:-1] or x.shape[-1] != size:
            raise RuntimeError(
                f"bilinear(): input{at + 1} size does not match weight size: got {x.shape[-1]} but expected {size}"
            )
    outer = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    product = matmul(outer, weight.flatten(1).t())
    return product if bias is None else product + bias


def ints(value: Any, ndim: int, name: str, argument: str) -> Ints:
    """Return one int for each spatial dimension, from one int for all or from a sequence. Raises RuntimeError,
    TypeError.
    """
    if value.__class__ is tuple and [*map(type, value)] == [int] * ndim:
        return value
    one = value if value.__class__ is int else int_or_none(value)
    if one is not None and abs(one) < 1 << 62:
        return (one,) * ndim
    if one is None and not isinstance(value, list | tuple):
        raise TypeError(argument_type(name, argument, 3, "tuple of ints", value))
    plain = ints_of([*value] if one is None else [one], name, argument, 3)
    if len(plain) == 1:
        return plain * ndim
    if len(plain) != ndim:
        raise RuntimeError(
            f"expected {argument} to be a single integer value or a list of {ndim} values to match the convolution "
            f"dimensions, but got {argument}={list(value)}"
        )
    return plain


def _check_dims(x: Tensor, weight: Tensor, ndim: int, name: str) -> bool:
    """Return True if the input is a batch. Raises RuntimeError where dimensions do not fit."""
    if x.meta.ndim not in (ndim + 1, ndim + 2):
        raise RuntimeError(
            f"Expected {ndim + 1}D (unbatched) or {ndim + 2}D (batched) input to {name}, but got input of size: "
            f"{list(x.shape)}"
        )
    if weight.meta.ndim < 3:
        raise RuntimeError(f"weight should have at least three dimensions, but has {weight.meta.ndim}")
    if weight.meta.ndim != ndim + 2:
        raise RuntimeError(
            f"Expected {ndim + 2}-dimensional weight of {name}, but got {weight.meta.ndim}-dimensional weight of size "
            f"{list(weight.shape)} instead"
        )
    return x.meta.ndim == ndim + 2


@lru_cache(1024)
def _geometry(stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Geometry:
    return _require_31_bits(Geometry(stride, padding, dilation, groups=groups))


def _require_31_bits(how: Geometry) -> Geometry:
    """Return a geometry after checking that its numbers fit in 31 bits, as cuDNN requires. Raises RuntimeError.

    Only the stride of windows may be larger: one window fits in each dimension, as with the largest number of 31 bits.
    """
    if not how.transposed and any(v > _MOST for v in how.stride):
        how = how._replace(stride=tuple([min(v, _MOST) for v in how.stride]))
    if any(v > _MOST for v in (*how.stride, *how.padding, *how.dilation, *how.output_padding)):
        raise RuntimeError(
            f"integer out of range: stride, padding and dilation have 31 bits, but are {how[:3]}"
        )
    return how


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, how: Geometry, name: str, ndim: int) -> Tensor:
    batched = _check_dims(x, weight, ndim, name)
    batch = x if batched else x.unsqueeze(0)
    out: Tensor = call(ops.convolution, (batch, weight) if bias is None else (batch, weight, bias), (how,))
    return out if batched else out.squeeze(0)


def _forward(ndim: int, name: str) -> Callable[..., Tensor]:
    def conv(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        require_tensor(input, name), require_tensor(weight, name, "weight", 2)
        steps, dilations = ints(stride, ndim, name, "stride"), ints(dilation, ndim, name, "dilation")
        if isinstance(padding, str):
            _check_dims(input, weight, ndim, name)
            input, pads = _named_padding(input, weight, padding, steps, dilations, ndim)
        else:
            pads = ints(padding, ndim, name, "padding")
        return _convolve(input, weight, bias, _geometry(steps, pads, dilations, int(groups)), name, ndim)

    signatures(
        f"{name}(input: Tensor, weight: Tensor, bias: Tensor | None=, stride: IntOrTuple=, "
        "padding: IntOrTuple | str=, dilation: IntOrTuple=, groups: int=)"
    )
    return _publish(conv, name, f"Convolution over {ndim} dimensions; `padding` may be 'same' or 'valid'.")


def _publish(define: Callable[..., Tensor], name: str, summary: str) -> Callable[..., Tensor]:
    define.__name__ = define.__qualname__ = name
    define.__doc__ = summary
    return by_parser(function(define))


def _named_padding(
    x: Tensor, weight: Tensor, padding: str, stride: Ints, dilation: Ints, ndim: int
) -> tuple[Tensor, Ints]:
    """Return the input, padded where the two sides differ, and the padding of both sides."""
    if padding == "valid":
        return x, (0,) * ndim
    if padding != "same":
        raise RuntimeError(f"Invalid padding string: '{padding}'")
    if any(s != 1 for s in stride):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=False)]
    uneven = [total % 2 for total in totals]
    if any(uneven):
        warn_program(
            "Using padding='same' with even kernel lengths and odd dilation may require a zero-padded copy of the "
            "input be created",
            UserWarning,
        )
        x = constant_pad(x, [n for more in reversed(uneven) for n in (0, more)], 0)
    return x, tuple([total // 2 for total in totals])


def _define_transposed(ndim: int, name: str) -> Callable[..., Tensor]:
    def conv_transpose(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrTuple = 1, padding: IntOrTuple = 0,
        output_padding: IntOrTuple = 0, groups: int = 1, dilation: IntOrTuple = 1,
    ) -> Tensor:  # fmt: skip
        require_tensor(input, name), require_tensor(weight, name, "weight", 2)
        given = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
        each = {key: ints(value, ndim, name, key) for key, value in given.items()}
        return _convolve(
            input,
            weight,
            bias,
            _require_31_bits(Geometry(**each, transposed=True, groups=int(groups))),
            name,
            ndim,
        )

    return _publish(conv_transpose, name, f"The transpose of convolution over {ndim} dimensions.")


conv1d, conv2d, conv3d = (_forward(n, f"conv{n}d") for n in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    _define_transposed(n, f"conv_transpose{n}d") for n in (1, 2, 3)
)


@by_parser
@function
def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Return convolution of input (time, batch, in) and weight (kernel, in, out) over time."""
    return conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)


def _pair(value: Any, name: str) -> Ints:
    if isinstance(value, Tensor):
        value = [*value]  # as in PyTorch, which iterates over the value
    pair = ints(value, 2, "unfold", name)
    if isinstance(value, Sequence) and len(value) != 2:
        raise RuntimeError(f"It is expected {name} equals to 2, but got size {len(value)}")
    return pair


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Return the windows of (N, C, H, W) as columns (N, C * taps, windows)."""
    require_tensor(input, "im2col")
    kernel, how = _pair(kernel_size, "kernel_size"), _windows(stride, padding, dilation)
    if input.dim() not in (3, 4):
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for "
            f"input, but got: {list(input.shape)}"
        )
    how = _check_positive(how, kernel)
    batched = input.dim() == 4
    out = call(ops.unfold, (input if batched else input.unsqueeze(0),), (kernel, how))
    return out if batched else out.squeeze(0)


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Return columns (N, C * taps, windows) added up to (N, C, *output_size)."""
    require_tensor(input, "col2im")
    kernel, how = _pair(kernel_size, "kernel_size"), _windows(stride, padding, dilation)
    size = _pair(output_size, "output_size")
    if input.dim() not in (2, 3):
        raise RuntimeError(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for "
            f"input, but got: {list(input.shape)}"
        )
    how = _check_positive(how, kernel)
    batched = input.dim() == 3
    out = call(ops.fold, (input if batched else input.unsqueeze(0),), (size, kernel, how))
    return out if batched else out.squeeze(0)


def _windows(stride: Any, padding: Any, dilation: Any) -> Geometry:
    return Geometry(_pair(stride, "stride"), _pair(padding, "padding"), _pair(dilation, "dilation"))


def _check_positive(how: Geometry, kernel: Ints) -> Geometry:
    """Return the geometry of windows with numbers of 31 bits. Raises RuntimeError for numbers that are too small."""
    how = _require_31_bits(how)
    for name, values in (("kernel size", kernel), ("dilation", how.dilation), ("stride", how.stride)):
        if any(v <= 0 for v in values):
            raise RuntimeError(f"{name} should be greater than zero, but got {list(values)}")
    if any(p < 0 for p in how.padding):
        raise RuntimeError(f"padding should be non-negative, but got {list(how.padding)}")
    return how
