"""`Holes`: free blocks by size. The best fit is exact.

Blocks of one size are kept together, and the sizes that there are in one sorted list. Sizes are multiples of 512 and
blocks of one size are many, so the list is short however many blocks there are: 4,096 sizes at most in a small pool. To
find a place in it is a bisection, to make one is to move some of its eight-byte entries.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Holes(Generic[T]):
    """Free blocks; those of one size are taken newest first."""

    __slots__ = ("_blocks", "_sizes")

    def __init__(self) -> None:
        self._blocks: dict[int, dict[T, None]] = {}  # by size
        self._sizes: list[int] = []

    def __iter__(self) -> Iterator[T]:
        for blocks in self._blocks.values():
            yield from blocks

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, block: T) -> None:
        size = block.size
        blocks = self._blocks.get(size)
        if blocks is None:
            self._blocks[size] = {block: None}
            insort(self._sizes, size)
        else:
            blocks[block] = None

    def remove(self, block: T) -> None:
        size = block.size
        blocks = self._blocks[size]
        del blocks[block]
        if not blocks:
            del self._blocks[size]
            del self._sizes[bisect_left(self._sizes, size)]

    def best(self, size: int) -> T | None:
        """The newest of the smallest blocks of at least `size` bytes, left where it is."""
        at = bisect_left(self._sizes, size)
        return next(reversed(self._blocks[self._sizes[at]])) if at < len(self._sizes) else None

    def take(self, size: int) -> T | None:
        """The same, taken out."""
        sizes = self._sizes
        at = bisect_left(sizes, size)
        if at == len(sizes):
            return None
        found = sizes[at]
        blocks = self._blocks[found]
        block, _ = blocks.popitem()
        if not blocks:
            del self._blocks[found]
            del sizes[at]
        return block

    def largest(self) -> int:
        """The size of the largest block, 0 if there is none."""
        return self._sizes[-1] if self._sizes else 0
