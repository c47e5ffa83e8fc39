"""`Size`: the shape of a tensor as programs see it, a tuple of ints."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from typing import Any, SupportsIndex


class Size(tuple[int, ...]):
    """`torch.Size([2, 3])`. Slices, sums and products of sizes are sizes.

    Raises:
        TypeError: An element that is not an int.
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[SupportsIndex] = ()) -> Size:
        return tuple.__new__(cls, [_check_dimension(n, i) for i, n in enumerate(sizes)])

    def numel(self) -> int:
        """Return the number of elements of a tensor of this shape."""
        return prod(self)

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return size_of(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Any:
        return size_of(tuple.__add__(self, other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return size_of(other + tuple(self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return size_of(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Size, (tuple(self),))


def size_of(sizes: tuple[int, ...]) -> Size:
    """Return the size of a shape that is known to hold ints."""
    return tuple.__new__(Size, sizes)


def _check_dimension(n: SupportsIndex, position: int) -> int:
    try:
        return index(n)
    except TypeError:
        raise TypeError(
            f"torch.Size() takes an iterable of 'int' (item {position} is '{type(n).__name__}')"
        ) from None
