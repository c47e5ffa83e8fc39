"""Fractional max pooling: windows of one size at drawn places, as many as the output has elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import int64
from flambeau.nn.functional.activation import refuse_gradient, require_tensor
from flambeau.tensor.arguments.arg_errors import IntOrTuple
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.random import rand
from flambeau.tensor.tensor import Tensor

_AXES = {2: ("height", "width"), 3: ("time", "height", "width")}


def _each(x: Any, ndim: int) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, list | tuple) else (x,) * ndim


def _ratios(ratio: Any, ndim: int, name: str) -> tuple[Any, ...]:
    """Return the ratio of each dimension. Raises ValueError for more ratios, IndexError for fewer."""
    ratios = _each(ratio, ndim)
    if len(ratios) > ndim:
        raise ValueError(
            f"{name} requires output_ratio to either be a single Int or tuple of Ints. Got {len(ratios)} for {ndim} "
            "dimensions"
        )
    if len(ratios) < ndim:
        raise IndexError(f"{name}: output_ratio is out of range: {len(ratios)} ratios for {ndim} dimensions")
    return ratios


def _scale(size: int, ratio: Any, name: str) -> int:
    """Return the size of an output. Raises OverflowError for an infinite product, ValueError for NaN, as int() does."""
    try:
        return int(size * ratio)
    except (OverflowError, ValueError) as error:
        raise type(error)(
            f"{name}: output_ratio must be finite, got {ratio!r} for a size of {size}"
        ) from None


def _check_samples(samples: Tensor, x: Tensor, ndim: int) -> None:
    """Raise RuntimeError if samples do not fit a batch of inputs."""
    if samples.dtype is not x.dtype:
        raise RuntimeError(
            f"Expect _random_samples to have the same dtype as input, got {samples.dtype} and {x.dtype}"
        )
    if samples.dim() != 3:
        raise RuntimeError(f"Expect _random_samples to have 3 dimensions, got {samples.dim()}")
    batch, channels, count = samples.shape
    if batch < x.shape[0]:
        raise RuntimeError(
            f"Expect _random_samples.size(0) no less then input batch size, got {batch} for {x.shape[0]}"
        )
    if channels != x.shape[1]:
        raise RuntimeError(
            f"Expect _random_samples.size(1) equals to input channel size, got {channels} for {x.shape[1]}"
        )
    if count != ndim:
        raise RuntimeError(f"Expect _random_samples.size(2) equals to {ndim}; got {count}.")


def _starts(samples: Any, size: int, count: int, window: int) -> Any:
    """Return the start of each of `count` windows in a dimension of `size`, (N, C, count), from samples (N, C) in [0,
    1).
    """
    last = creation.full((*samples.shape, 1), size - window, dtype=int64, device=samples.device)
    if count <= 1:
        return last[..., :count]
    steps = creation.arange(count - 1, dtype=samples.dtype, device=samples.device)
    alpha = creation.full((), size - window, dtype=samples.dtype, device=samples.device) / (count - 1)
    sample = samples.unsqueeze(-1)
    before = ((steps + sample) * alpha).to(int64) - (sample * alpha).to(int64)
    return functions["cat"]((before, last), -1)


def _places(starts: Sequence[Any], windows: Sequence[int], sizes: Sequence[int]) -> Any:
    """Return indices into each flattened plane: (N, C, *counts, window elements)."""
    ndim = len(starts)
    total: Any = None
    for axis, (start, window, size) in enumerate(zip(starts, windows, sizes, strict=True)):
        inside = start.unsqueeze(-1) + creation.arange(window, dtype=int64, device=start.device)
        shape = [*start.shape[:2], *(1,) * (2 * ndim)]
        shape[2 + axis], shape[2 + ndim + axis] = inside.shape[2:]
        here = inside.view(shape)
        total = here if total is None else total * size + here
    return total.flatten(-ndim)


def _pool(
    ndim: int,
    input: Tensor,
    kernel_size: IntOrTuple,
    output_size: Any,
    output_ratio: Any,
    samples: Tensor | None,
) -> tuple[Any, Any]:
    name = f"fractional_max_pool{ndim}d"
    if output_size is None and output_ratio is None:
        raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
    x: Any = require_tensor(input, name)
    if x.dim() not in (ndim + 1, ndim + 2):
        raise RuntimeError(f"{name}(): Expected {ndim + 1}D or {ndim + 2}D tensor, but got: {list(x.shape)}")
    batch = x if x.dim() == ndim + 2 else x.unsqueeze(0)
    sizes = tuple(batch.shape[2:])
    if output_size is None:
        ratios = zip(sizes, _ratios(output_ratio, ndim, name), strict=True)
        output_size = [_scale(n, ratio, name) for n, ratio in ratios]
    counts = ints_of(_each(output_size, ndim), name, "output_size", 3)
    windows = ints_of(_each(kernel_size, ndim), name, "kernel_size", 2)
    if not all(batch.shape[1:]):
        raise RuntimeError(
            f"{name}(): Expected input to have non-zero size for non-batch dimensions, but got {list(x.shape)}"
        )
    for axis, size, window, count in zip(_AXES[ndim], sizes, windows, counts, strict=True):
        if count < 0 or window < 1:
            raise RuntimeError(
                f"{name}(): output_size must not be negative and kernel_size must be positive, but got output {axis} "
                f"{count} and kernel {axis} {window}"
            )
        if count + window > size + (ndim == 2):  # in three dimensions PyTorch allows one position more
            raise RuntimeError(f"{name}(): pool {axis} {window} too large relative to input {axis} {size}")
    refuse_gradient(name, "random_samples", samples)
    if samples is None:
        samples = rand(*batch.shape[:2], ndim, dtype=x.dtype, device=x.device)
    order = (1, 0) if ndim == 2 else (0, 1, 2)  # the first sample places the width in two dimensions
    _check_samples(require_tensor(samples, name, "random_samples", 4), batch, ndim)
    drawn: Any = samples[: batch.shape[0]]
    starts = [
        _starts(drawn[..., order[axis]], sizes[axis], counts[axis], windows[axis]) for axis in range(ndim)
    ]
    places = _places(starts, windows, sizes)
    values = batch.flatten(2).gather(2, places.flatten(2)).view(places.shape)
    top, which = values.max(-1)
    indices = places.gather(-1, which.unsqueeze(-1)).squeeze(-1)
    return (top, indices) if x.dim() == ndim + 2 else (top.squeeze(0), indices.squeeze(0))


def fractional_max_pool2d_with_indices(
    input: Tensor, kernel_size: IntOrTuple, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the largest of each drawn window of (N, C, H, W) or (C, H, W), and where in its plane it was."""
    return _pool(2, input, kernel_size, output_size, output_ratio, _random_samples)


def fractional_max_pool3d_with_indices(
    input: Tensor, kernel_size: IntOrTuple, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the largest of each drawn window of (N, C, T, H, W) or (C, T, H, W), and where in its volume it was."""
    return _pool(3, input, kernel_size, output_size, output_ratio, _random_samples)


def fractional_max_pool2d(
    input: Tensor, kernel_size: IntOrTuple, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """Return the maximum of each of `output_size` windows (or `output_ratio` of the input's size) of (N, C, H, W).

    Args:
        _random_samples: (N, C, 2) in [0, 1), which place the windows; drawn if None.

    Raises:
        ValueError: If both size and ratio are None.
        RuntimeError: If windows do not fit.
    """
    both = _pool(2, input, kernel_size, output_size, output_ratio, _random_samples)
    return both if return_indices else both[0]


def fractional_max_pool3d(
    input: Tensor, kernel_size: IntOrTuple, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """Return `fractional_max_pool2d` of (N, C, T, H, W), with `_random_samples` (N, C, 3)."""
    both = _pool(3, input, kernel_size, output_size, output_ratio, _random_samples)
    return both if return_indices else both[0]
