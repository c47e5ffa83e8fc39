"""Layouts for kernels: dimensions merged and ordered, and division by multiplication."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flambeau.core.layout import Dims, merge_dims
from flambeau.core.tracing.symbols import pack

_WIDE = 1 << 31


def walk_dims(shape: Sequence[int], strides: Sequence[Sequence[int]], ordered: bool = True) -> Dims:
    """Return `merge_dims` for a `Walk`, which has one dimension at least: of size 1 for operands of one element."""
    return merge_dims(shape, strides, ordered) or [(1, (0,) * len(strides))]


def is_wide(*layouts: Dims) -> bool:
    """Return True if an element's index, or the number of elements, needs more than 31 bits."""
    return any(index >= _WIDE for dims in layouts for index in _largest_indices(dims))


def _largest_indices(dims: Dims) -> list[int]:
    """Return the number of elements, and the largest element offset of each operand."""
    operands = range(len(dims[0][1])) if dims else ()
    return [
        prod([size for size, _ in dims]),
        *[sum((size - 1) * steps[k] for size, steps in dims) for k in operands],
    ]


def pack_walk(dims: Dims, wide: bool) -> bytes:
    """Return the kernel parameter `Walk<D, K>` (32 bits) or `WideWalk<D, K>`: the sizes, then each operand's strides.

    The 32-bit form divides by multiplication: quotient = (mulhi(x, magic) + x) >> shift, for x below 2 ** 31.
    """
    inner = dims[::-1]
    # nothing is visited in an empty tensor, whatever its strides are
    sizes = [max(size, 1) for size, _ in inner]
    strides = [steps[k] if size else 0 for k in range(len(dims[0][1])) for size, steps in inner]
    if wide:
        return pack(f"<{len(sizes) + len(strides)}q", *sizes, *strides)
    shifts = [(size - 1).bit_length() for size in sizes]
    magics = [
        ((1 << 32) * ((1 << shift) - size)) // size + 1 for size, shift in zip(sizes, shifts, strict=True)
    ]
    numbers = [*sizes, *magics, *shifts, *strides]
    return pack(f"<{len(numbers)}I", *numbers)
