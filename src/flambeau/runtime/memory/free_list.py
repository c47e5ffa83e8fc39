"""`Holes`: free blocks by size. The best fit is exact.

Blocks of one size are a chain that they make themselves, the newest on top. The sizes that there are are one sorted
list, the tops of their chains another beside it. Sizes are multiples of 512 and blocks of one size are many, so the
lists are short however many blocks there are: 4,096 sizes at most in a small pool. To find a place in them is a
bisection, to make one is to move some of their eight-byte entries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

_place: Final = bisect_left


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
        self._sizes: list[int] = []  # in order
        self._tops: list[T] = []  # the newest block of each

    def __iter__(self) -> Iterator[T]:
        for top in self._tops:
            block: T | None = top
            while block is not None:
                yield block
                block = block.below

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, block: T) -> None:
        sizes, size = self._sizes, block.size
        at = _place(sizes, size)
        if at < len(sizes) and sizes[at] == size:
            below = self._tops[at]
            below.above = block
            block.below = below
            self._tops[at] = block
        else:
            sizes.insert(at, size)
            self._tops.insert(at, block)
        block.holes = self

    def remove(self, block: T) -> None:
        above, below = block.above, block.below
        if above is not None:
            above.below = below
            block.above = None
        else:
            at = _place(self._sizes, block.size)
            if below is not None:
                self._tops[at] = below
            else:
                del self._sizes[at], self._tops[at]
        if below is not None:
            below.above = above
            block.below = None
        block.holes = None

    def best(self, size: int) -> T | None:
        """The newest of the smallest blocks of at least `size` bytes, left where it is."""
        at = _place(self._sizes, size)
        return self._tops[at] if at < len(self._sizes) else None

    def take(self, size: int) -> T | None:
        """The same, taken out."""
        tops = self._tops
        at = _place(self._sizes, size)
        if at == len(tops):
            return None
        block = tops[at]
        below = block.below
        if below is None:
            del self._sizes[at], tops[at]
        else:
            tops[at] = below
            below.above = block.below = None
        block.holes = None
        return block

    def largest(self) -> int:
        """The size of the largest block, 0 if there is none."""
        return self._sizes[-1] if self._sizes else 0
