"""`Holes`: free blocks by size. The best fit is exact.

Blocks of one size are a chain that they make themselves, the newest on top, and the sizes that there are one sorted
list. Sizes are multiples of 512 and blocks of one size are many, so the list is short however many blocks there are:
4,096 sizes at most in a small pool. To find a place in it is a bisection, to make one is to move some of its eight-byte
entries.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

_place: Final = bisect.bisect_left
_insert: Final = bisect.insort


class Sized:
    """What can be a hole. `holes`: where it is one, if it is; `above` and `below`: its neighbours of the same size."""

    __slots__ = ("above", "below", "holes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.holes: Holes[Any] | None = None
        self.above: Any = None
        self.below: Any = None

    @property
    def is_hole(self) -> bool:
        return self.holes is not None


T = TypeVar("T", bound=Sized)


class Holes(Generic[T]):
    """Free blocks; those of one size are taken newest first."""

    __slots__ = ("_sizes", "_tops")

    def __init__(self) -> None:
        self._tops: dict[int, T] = {}  # by size
        self._sizes: list[int] = []

    def __iter__(self) -> Iterator[T]:
        for top in self._tops.values():
            block: T | None = top
            while block is not None:
                yield block
                block = block.below

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, block: T) -> None:
        size = block.size
        below = self._tops.get(size)
        if below is None:
            _insert(self._sizes, size)
        else:
            below.above = block
            block.below = below
        self._tops[size] = block
        block.holes = self

    def remove(self, block: T) -> None:
        above, below = block.above, block.below
        if above is not None:
            above.below = below
            block.above = None
        elif below is not None:
            self._tops[block.size] = below
        else:
            size = block.size
            del self._tops[size]
            del self._sizes[_place(self._sizes, size)]
        if below is not None:
            below.above = above
            block.below = None
        block.holes = None

    def best(self, size: int) -> T | None:
        """The newest of the smallest blocks of at least `size` bytes, left where it is."""
        at = _place(self._sizes, size)
        return self._tops[self._sizes[at]] if at < len(self._sizes) else None

    def take(self, size: int) -> T | None:
        """The same, taken out."""
        sizes = self._sizes
        at = _place(sizes, size)
        if at == len(sizes):
            return None
        found = sizes[at]
        block = self._tops[found]
        below = block.below
        if below is None:
            del self._tops[found]
            del sizes[at]
        else:
            self._tops[found] = below
            below.above = block.below = None
        block.holes = None
        return block

    def largest(self) -> int:
        """The size of the largest block, 0 if there is none."""
        return self._sizes[-1] if self._sizes else 0
