"""Free blocks of one pool, ordered by size, with exact best fit.

Blocks of equal size form a linked list, newest first. The sizes are one sorted list; a second list has the newest
block of each. Sizes are multiples of 512 and many blocks share a size, so the lists are short: a small pool has at
most 4,096 sizes. A lookup is a bisection; an insertion moves some eight-byte entries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

_position: Final = bisect_left


class ListedBlock:
    """A block that a `FreeList` can hold.

    Attributes:
        size: Size in bytes.
        free_list: The list that holds the block; None if the block is not free.
        newer: The next newer block of equal size in the list.
        older: The next older block of equal size in the list.
    """

    __slots__ = ("free_list", "newer", "older", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_list: FreeList[Any] | None = None
        self.newer: Any = None
        self.older: Any = None

    @property
    def is_free(self) -> bool:
        return self.free_list is not None


T = TypeVar("T", bound=ListedBlock)


class FreeList(Generic[T]):
    """Free blocks by size. Among blocks of equal size, the newest is taken first."""

    __slots__ = ("_sizes", "_tops")

    def __init__(self) -> None:
        self._sizes: list[int] = []  # sizes, sorted
        self._tops: list[T] = []  # the newest block of each size

    def __iter__(self) -> Iterator[T]:
        for top in self._tops:
            block: T | None = top
            while block is not None:
                yield block
                block = block.older

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, block: T) -> None:
        sizes, size = self._sizes, block.size
        at = _position(sizes, size)
        if at < len(sizes) and sizes[at] == size:
            below = self._tops[at]
            below.newer = block
            block.older = below
            self._tops[at] = block
        else:
            sizes.insert(at, size)
            self._tops.insert(at, block)
        block.free_list = self

    def remove(self, block: T) -> None:
        above, below = block.newer, block.older
        if above is not None:
            above.older = below
            block.newer = None
        else:
            at = _position(self._sizes, block.size)
            if below is not None:
                self._tops[at] = below
            else:
                del self._sizes[at], self._tops[at]
        if below is not None:
            below.newer = above
            block.older = None
        block.free_list = None

    def best(self, size: int) -> T | None:
        """Return the newest of the smallest blocks of at least `size` bytes; None if there is none."""
        at = _position(self._sizes, size)
        return self._tops[at] if at < len(self._sizes) else None

    def take(self, size: int) -> T | None:
        """Remove and return the newest of the smallest blocks of at least `size` bytes; None if there is none."""
        tops = self._tops
        at = _position(self._sizes, size)
        if at == len(tops):
            return None
        block = tops[at]
        below = block.older
        if below is None:
            del self._sizes[at], tops[at]
        else:
            tops[at] = below
            below.newer = block.older = None
        block.free_list = None
        return block

    def largest(self) -> int:
        """Return the size of the largest block; 0 if the list is empty."""
        return self._sizes[-1] if self._sizes else 0
