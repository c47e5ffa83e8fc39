"""Pooling over one to three dimensions; inputs (C, spatial ...) or (N, C, spatial ...)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np

from flambeau.core.errors import argument_type
from flambeau.nn.functional.activation import require_tensor
from flambeau.ops.nn import pooling as ops
from flambeau.ops.nn.pooling import Windows
from flambeau.ops.op import Op
from flambeau.tensor.arguments.arg_errors import IntOrTuple
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.arguments.integers import int_or_none
from flambeau.tensor.arguments.public import function
from flambeau.tensor.call import call
from flambeau.tensor.signatures import by_parser, compares, signatures
from flambeau.tensor.tensor import Tensor

Ints = tuple[int, ...]


def _ints(value: Any, ndim: int, name: str, argument: str) -> Ints:
    one = value if value.__class__ is int else int_or_none(value)
    if one is not None:
        return (one,) * ndim
    if not isinstance(value, list | tuple):
        raise TypeError(argument_type(name, argument, 2, "tuple of ints", value))
    sizes = ints_of(value, name, argument, 2)
    if len(sizes) not in (1, ndim):
        raise RuntimeError(f"{name}: {argument} must either be a single int, or a tuple of {ndim} ints")
    return sizes * (ndim if len(sizes) == 1 else 1)


def _windows(
    name: str, ndim: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1, ceil: bool = False
) -> Windows:
    sizes = _ints(kernel, ndim, name, "kernel_size")
    steps = (
        sizes
        if stride is None or (isinstance(stride, list | tuple) and not stride)
        else _ints(stride, ndim, name, "stride")
    )
    pads, dilations = _ints(padding, ndim, name, "padding"), _ints(dilation, ndim, name, "dilation")
    return _check_windows(Windows(sizes, steps, pads, dilations, ceil))


@lru_cache(1024)
def _check_windows(how: Windows) -> Windows:
    """Return the windows. Raises RuntimeError if their sizes, strides, paddings or dilations are invalid."""
    for what, values in (("kernel size", how.kernel), ("stride", how.stride), ("dilation", how.dilation)):
        if any(v <= 0 for v in values):
            raise RuntimeError(f"{what} should be greater than zero, but got {list(values)}")
    if any(v >= 1 << 31 for v in (*how.kernel, *how.stride, *how.padding, *how.dilation)):
        raise RuntimeError(
            f"integer out of range: kernel size, stride, padding and dilation have 31 bits, but are {how[:4]}"
        )
    for pad, k, d in zip(how.padding, how.kernel, how.dilation, strict=True):
        if pad < 0:
            raise RuntimeError(f"pad must be non-negative, but got pad: {pad}")
        if 2 * pad > d * (k - 1) + 1:
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={pad}, kernel_size={k} and "
                f"dilation={d}"
            )
    return how


def _run(op: Op, name: str, x: Any, ndim: int, params: tuple[Any, ...], *more: Tensor) -> Any:
    """Run an operator on a batch. A single sample becomes a batch of one."""
    batched = require_tensor(x, name).meta.ndim == ndim + 2
    if not batched and x.dim() != ndim + 1:
        raise RuntimeError(
            f"{name}(): Expected {ndim + 1}D or {ndim + 2}D (batch mode) tensor, but got input of size: {list(x.shape)}"
        )
    if 0 in x.meta.shape[1 if batched else 0 :]:
        raise RuntimeError(
            f"{name}(): Expected {ndim + 1}D or {ndim + 2}D (batch mode) tensor with optional 0 dim batch size for "
            f"input, but got: {list(x.shape)}"
        )
    if batched:
        return call(op, (x, *more), params)
    results = call(op, [t.unsqueeze(0) for t in (x, *more)], params)
    return tuple([r.squeeze(0) for r in results]) if isinstance(results, tuple) else results.squeeze(0)


def _set_name(define: Callable[..., Any], name: str, summary: str) -> Callable[..., Any]:
    define.__name__ = define.__qualname__ = name
    define.__doc__ = summary
    return define


_WINDOWS = "input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=, padding: IntOrTuple="
_DILATED = f"{_WINDOWS}, dilation: IntOrTuple=, ceil_mode: bool="
_SHOWN = "input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=None, padding: IntOrTuple=0"
_SHOWN_DILATED = f"{_SHOWN}, dilation: IntOrTuple=1, ceil_mode: bool=False"


# -- maxima ---------------------------------------------------------------------------------------------


def _max(ndim: int, name: str) -> Callable[..., Any]:
    def max_pool(
        input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        how = _windows(name, ndim, kernel_size, stride, padding, dilation, ceil_mode)
        values, places = _run(ops.max_pool, name, input, ndim, (how,))
        return (values, places) if return_indices else values

    signatures(
        f"{name}({_DILATED})\nF.{name}_with_indices({_DILATED}, return_indices: Any=)",
        shown=f"{name}({_SHOWN_DILATED})",
    )
    return _set_name(
        max_pool, name, f"Maxima of windows over {ndim} dimensions; with `return_indices` where they stand."
    )


def _with_indices(define: Callable[..., Any]) -> Callable[..., Any]:
    place = list(signature(define).parameters).index("return_indices")

    def with_indices(*args: Any, return_indices: bool = True, **kwargs: Any) -> Any:
        return define(
            *args[:place], *args[place + 1 :], **kwargs, return_indices=True
        )  # whatever the caller says

    return _set_name(
        with_indices, f"{define.__name__}_with_indices", f"`{define.__name__}`, and where they stand."
    )


signatures(f"max_pool1d_with_indices({_DILATED})", shown=f"max_pool1d_with_indices({_SHOWN_DILATED})")
max_pool1d, max_pool2d, max_pool3d = (_max(n, f"max_pool{n}d") for n in (1, 2, 3))
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    by_parser(_with_indices(f)) for f in (max_pool1d, max_pool2d, max_pool3d)
)


def _unpool(ndim: int, name: str) -> Callable[..., Tensor]:
    def max_unpool(
        input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
        output_size: Any = None,
    ) -> Tensor:  # fmt: skip
        kernel = _numbers(kernel_size, ndim, name, "kernel_size")
        steps = kernel if stride is None else _numbers(_leading(stride, ndim), ndim, name, "stride")
        pads = _numbers(_leading(padding, ndim), ndim, name, "padding")
        for argument, each in (("kernel_size", kernel_size), ("stride", stride), ("padding", padding)):
            if ndim > 1 and isinstance(each, tuple | list) and len(each) == 1:
                raise RuntimeError(
                    f"{name}: {argument} must be an int or a tuple of {ndim} ints, but got {each}"
                )
        if ndim == 3:  # whose kernel checks them
            steps, pads = ints_of(steps, name, "stride", 4), ints_of(pads, name, "padding", 5)
            if min(steps) <= 0:
                raise RuntimeError(f"strides should be greater than zero, but got stride: {list(steps)}")
        if input.dim() < ndim:
            raise ValueError(f"Input dimension should be at least {ndim + 1}, got {input.dim()}")
        natural = [
            (n - 1) * s - 2 * p + k
            for n, s, p, k in zip(input.shape[-ndim:], steps, pads, kernel, strict=True)
        ]
        if output_size is not None and not isinstance(output_size, Sequence):
            raise TypeError(argument_type(name, "output_size", 6, "tuple of ints", output_size))
        size = tuple(natural if output_size is None else output_size)[-ndim:]
        if output_size is not None:
            _check_unpooled(size, natural, steps, ndim)
        return _run(ops.max_unpool, name, input, ndim, (ints_of(size, name, "output_size", 6),), indices)

    return _set_name(max_unpool, name, f"Maxima put back where `max_pool{ndim}d` found them; 0 elsewhere.")


def _numbers(values: Any, ndim: int, name: str, argument: str) -> tuple[Any, ...]:
    """Return a number for each dimension. Bools and floats fit, because PyTorch computes with them in Python."""
    each = tuple(values) if isinstance(values, tuple | list) else (values,)
    if len(each) in (1, ndim) and all(
        isinstance(one, float | np.floating | int | np.integer) for one in each
    ):
        return each * (ndim if len(each) == 1 else 1)
    return _ints(values, ndim, name, argument)


def _leading(values: Any, ndim: int) -> Any:
    """Return the values of the first `ndim` dimensions. PyTorch ignores further values of `max_unpool1d`."""
    return values[:ndim] if ndim == 1 and isinstance(values, (tuple, list)) else values


def _check_unpooled(size: Sequence[int], natural: Sequence[Any], steps: Sequence[Any], ndim: int) -> None:
    if len(size) != ndim:
        raise ValueError(f"output_size should be a sequence containing {ndim} or {ndim + 2} elements")
    for d, (n, middle, s) in enumerate(zip(size, natural, steps, strict=True)):
        if not middle - s < n < middle + s:
            raise ValueError(
                f'invalid output_size "{tuple(size)}" (dim {d} must be between {middle - s} and {middle + s})'
            )


max_unpool1d, max_unpool2d, max_unpool3d = (_unpool(n, f"max_unpool{n}d") for n in (1, 2, 3))


# -- means ----------------------------------------------------------------------------------------------


def _avg(ndim: int, name: str) -> Callable[..., Tensor]:
    def avg_pool(
        input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        how = _windows(name, ndim, kernel_size, stride, padding, 1, ceil_mode)
        if ndim == 3 and any(n < k for n, k in zip(input.shape[-3:], how.kernel, strict=False)):
            raise RuntimeError(f"input image {tuple(input.shape[-3:])} smaller than kernel size {how.kernel}")
        return _run(ops.avg_pool, name, input, ndim, (how, bool(count_include_pad), divisor_override))

    return _set_name(by_parser(avg_pool), name, f"Means of windows over {ndim} dimensions.")


signatures(
    f"avg_pool1d({_WINDOWS}, ceil_mode: bool=, count_include_pad: bool=)",
    shown=f"avg_pool1d({_SHOWN}, ceil_mode: bool=False, count_include_pad: bool=True)",
)
avg_pool1d, avg_pool2d, avg_pool3d = (_avg(n, f"avg_pool{n}d") for n in (1, 2, 3))


def _lp(
    ndim: int, name: str, mean: Callable[..., Tensor], greatest: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    def lp_pool(
        input: Tensor,
        norm_type: float,
        kernel_size: IntOrTuple,
        stride: IntOrTuple | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:
        if isinstance(norm_type, (int, float)) and norm_type == 0:
            raise ZeroDivisionError(
                f"{name}(): norm_type must not be zero, because the result is a root of that degree"
            )
        if isinstance(norm_type, (int, float)) and math.isinf(norm_type):
            sign = math.copysign(1, norm_type)
            return sign * greatest(sign * input.abs(), kernel_size, stride, 0, 1, ceil_mode)
        count = 1
        for k in _ints(kernel_size, ndim, name, "kernel_size"):
            count *= k
        out = mean(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
        return (out.sign() * out.abs().relu()).mul(count).pow(1.0 / norm_type)

    compares("norm_type")(lp_pool)
    return _set_name(lp_pool, name, f"The p-norms of windows over {ndim} dimensions, signs kept.")


lp_pool1d = _lp(1, "lp_pool1d", avg_pool1d, max_pool1d)
lp_pool2d = _lp(2, "lp_pool2d", avg_pool2d, max_pool2d)
lp_pool3d = _lp(3, "lp_pool3d", avg_pool3d, max_pool3d)


# -- adaptive -------------------------------------------------------------------------------------------


def _target(x: Any, size: Any, ndim: int, name: str) -> Ints:
    """Return the output size. None in `size` keeps the input's size."""
    one = int_or_none(size) if ndim == 1 or isinstance(size, int) else None
    if one is not None:
        return (one,) * ndim
    if not isinstance(size, list | tuple) and (
        ndim == 1 or not isinstance(size, Sequence) or isinstance(size, str | bytes)
    ):
        raise TypeError(argument_type(name, "output_size", 2, "tuple of ints", size))
    if ndim == 1:
        size = ints_of(size, name, "output_size", 2)
    own = require_tensor(x, name).shape[-ndim:]
    plain = iter(ints_of([n for n in size if n is not None], name, "output_size", 2))
    if (len(size) == 1 and ndim > 1) or len(size) > ndim:
        raise RuntimeError(f"{name}: output_size must be {ndim}")
    if ndim > 1 and x.dim() <= len(size):
        raise ValueError(f"Input dimension should be at least {len(size) + 1}")
    return tuple([have if n is None else next(plain) for n, have in zip(size, own, strict=False)])


def _adaptive_avg(ndim: int, name: str) -> Callable[..., Tensor]:
    def adaptive_avg_pool(input: Tensor, output_size: IntOrTuple) -> Tensor:
        return _run(ops.adaptive_avg_pool, name, input, ndim, (_target(input, output_size, ndim, name),))

    return _set_name(
        adaptive_avg_pool, name, f"Means of as many windows over {ndim} dimensions as are asked for."
    )


def _adaptive_max(ndim: int, name: str) -> Callable[..., Any]:
    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        size = _target(require_tensor(input, name), output_size, ndim, name)
        values, places = _run(ops.adaptive_max_pool, name, input, ndim, (size,))
        return (values, places) if return_indices else values

    return _set_name(
        adaptive_max_pool, name, f"Maxima of as many windows over {ndim} dimensions as are asked for."
    )


def _adaptive_with_indices(define: Callable[..., Any]) -> Callable[..., Any]:
    def with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        return define(input, output_size, return_indices=True)  # whatever the caller says

    return _set_name(
        with_indices, f"{define.__name__}_with_indices", f"`{define.__name__}`, and where they stand."
    )


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    _adaptive_avg(n, f"adaptive_avg_pool{n}d") for n in (1, 2, 3)
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _adaptive_max(n, f"adaptive_max_pool{n}d") for n in (1, 2, 3)
)
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = (
    _adaptive_with_indices(f) for f in (adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d)
)

by_parser(adaptive_avg_pool1d)
for _public in (max_pool1d, max_pool2d, max_pool3d, max_pool1d_with_indices, avg_pool1d, adaptive_avg_pool1d):
    function(_public)
