"""The layout of a mesh's dimensions in a flat list of ranks: slicing, flattening and splitting of dimensions.

An `Axis` is one dimension: pairs (size, stride) from the outermost to the innermost, merged where possible and without
pairs of size 1. Two axes are equal exactly if they enumerate equal positions in equal order. An axis has one pair,
except if it was flattened from dimensions that are not adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import prod

Axis = tuple[tuple[int, int], ...]


def axis(pairs: Iterable[tuple[int, int]]) -> Axis:
    """Return the axis that these (size, stride) pairs form, with pairs merged where they are adjacent in memory."""
    merged: list[tuple[int, int]] = []
    for size, stride in pairs:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return tuple(merged)


def join_axes(axes: Iterable[Axis]) -> Axis:
    """Return several axes merged into one; the last of them varies fastest."""
    return axis([pair for one in axes for pair in one])


def length(one: Axis) -> int:
    return prod(size for size, _ in one)


def row_major(shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return the axes of a mesh that is not a slice."""
    return tuple([axis([(size, prod(shape[place + 1 :]))]) for place, size in enumerate(shape)])


def in_order(one: Axis) -> bool:
    """Return True if the strides decrease, so that dimensions are in the order of the list of ranks."""
    return all(a >= b for (_, a), (_, b) in pairwise(one))


def apart(one: Axis) -> bool:
    """Return True if all positions of the axis differ."""
    ordered = sorted([(stride, size) for size, stride in one], reverse=True)
    return all(stride % (inner * size) == 0 for (stride, _), (inner, size) in pairwise(ordered))


def tiles(one: Axis, count: int) -> list[list[int]]:
    """Return the positions 0 to count - 1 divided into copies of the axis."""
    steps = [
        sum(i * stride for i, (_, stride) in zip(at, one, strict=True))
        for at in product(*[range(size) for size, _ in one])
    ]
    found: list[list[int]] = []
    seen: set[int] = set()
    for start in range(count):
        if start not in seen:
            found.append([start + step for step in steps])
            seen.update(found[-1])
    return found


def split(one: Axis, sizes: Sequence[int]) -> list[Axis]:
    """Split an axis into axes of these sizes.

    Raises:
        AssertionError: If the axis cannot be split at these places.
    """
    remaining = list(one)
    parts: list[Axis] = []
    for size in reversed(sizes):
        taken: list[tuple[int, int]] = []
        while size > 1:
            have, stride = remaining.pop()
            if have % size and size % have:
                raise AssertionError(f"an axis of {one} cannot be split into {tuple(sizes)}")
            part = min(have, size)
            taken.insert(0, (part, stride))
            size //= part
            if have > part:
                remaining.append((have // part, stride * part))
        parts.insert(0, axis(taken))
    return parts
