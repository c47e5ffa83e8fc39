"""`make_tensor`: tensors of random values in an interval, for tests of operators."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import flambeau as torch
from flambeau.core.dtype import dtype as DType

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_INTEGERS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64,
)  # fmt: skip


def make_tensor(
    *shape: int | Sequence[int],
    dtype: DType,
    device: Any,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Any:
    """Return a tensor of random values, uniform in [low, high).

    Args:
        shape: Sizes, or one sequence of them.
        dtype, device, requires_grad: Those of the tensor.
        low, high: The interval, clipped to the values of the dtype. Default: [-9, 10) of integers, [-9, 9) of other
            numbers, both booleans.
        noncontiguous: Return each second element of a larger tensor, if there are two elements or more.
        exclude_zero: Replace zeros by the smallest positive normal number, or by 1 in integers.
        memory_format: The layout; not together with `noncontiguous`.

    Raises:
        ValueError: If the interval is empty, NaN or outside of the dtype, an integer tensor is to require gradients,
            or both layouts are given.
        TypeError: If the dtype is not a number's.

    Source: `torch.testing.make_tensor`.
    """
    sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    sizes = tuple(sizes)
    is_integer = dtype in _INTEGERS
    if noncontiguous and memory_format is not None:
        raise ValueError(
            "The parameters `noncontiguous` and `memory_format` are mutually exclusive, "
            f"but got {noncontiguous=} and {memory_format=}"
        )
    if requires_grad and is_integer:
        raise ValueError(
            f"`requires_grad=True` is not supported for boolean and integral dtypes, but got {dtype=}"
        )
    noncontiguous = noncontiguous and math.prod(sizes) > 1
    if noncontiguous:
        sizes = (*sizes[:-1], 2 * sizes[-1])
    result = _draw(sizes, dtype, device, low, high)
    if noncontiguous:
        result = result[..., 1::2]
    elif memory_format is not None:
        result = result.clone(memory_format=memory_format)
    if exclude_zero:
        result[result == 0] = 1 if is_integer else torch.finfo(dtype).tiny
    if not is_integer and dtype not in _FLOAT8:
        result.requires_grad = requires_grad
    return result


def _draw(sizes: tuple[int, ...], dtype: DType, device: Any, low: float | None, high: float | None) -> Any:
    if dtype is torch.bool:
        first, last = map(math.ceil, _interval(low, high, (0, 2), (0, 2), dtype))
        return torch.randint(first, last, sizes, device=device, dtype=dtype)
    if dtype in _INTEGERS:
        info: Any = torch.iinfo(dtype)
        bounds = info.min, info.max + (dtype is not torch.int64)
        first, last = map(math.ceil, _interval(low, high, bounds, (-9, 10), dtype))
        return torch.randint(first, last, sizes, device=device, dtype=dtype)
    if dtype not in (*_FLOATING, *_COMPLEX, *_FLOAT8):
        raise TypeError(f"The requested dtype '{dtype}' is not supported by torch.testing.make_tensor().")
    info = torch.finfo(dtype)
    least, most = _interval(low, high, (info.min, info.max), (-9, 9), dtype)
    drawn: Any = torch.empty(sizes, device=device, dtype=torch.float32 if dtype in _FLOAT8 else dtype)
    numbers = torch.view_as_real(drawn) if dtype in _COMPLEX else drawn
    if most - least >= torch.finfo(numbers.dtype).max:
        numbers.uniform_(least / 2, most / 2).mul_(2)
    else:
        numbers.uniform_(least, most)
    return drawn.to(dtype)


def _interval(
    low: float | None,
    high: float | None,
    bounds: tuple[float, float],
    default: tuple[float, float],
    dtype: DType,
) -> tuple[float, float]:
    """Return the interval of the values to draw: `low` and `high`, or those of `default`, clipped to `bounds`."""
    low, high = default[0] if low is None else low, default[1] if high is None else high
    if math.isnan(low) or math.isnan(high):
        raise ValueError(f"`low` and `high` cannot be NaN, but got {low=} and {high=}")
    if low == high and dtype in (*_FLOATING, *_COMPLEX):
        warnings.warn(
            "Passing `low==high` to `torch.testing.make_tensor` for floating or complex types is deprecated since 2.1 "
            "and will be removed in 2.3. Use `torch.full(...)` instead.",
            FutureWarning,
            stacklevel=4,
        )
    elif low >= high:
        raise ValueError(f"`low` must be less than `high`, but got {low} >= {high}")
    elif high < bounds[0] or low >= bounds[1]:
        raise ValueError(
            f"The value interval specified by `low` and `high` is [{low}, {high}), "
            f"but {dtype} only supports [{bounds[0]}, {bounds[1]})"
        )
    return min(max(low, bounds[0]), bounds[1]), min(max(high, bounds[0]), bounds[1])
