"""`Holes`: free blocks by size, found by best fit at a cost that does not depend on how many there are."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Holes(Generic[T]):
    """Free blocks, kept by size.

    Sizes fall into 32 classes per power of two. A class keeps its distinct sizes sorted, a size its
    blocks in the order they came, and one int has a bit for each class that is not empty: best fit is a
    look into the request's own class, then at the lowest bit above it.
    """

    __slots__ = ("_blocks", "_classes", "_mask")

    def __init__(self) -> None:
        self._blocks: dict[int, dict[T, None]] = {}
        self._classes: dict[int, list[int]] = {}
        self._mask = 0

    def __iter__(self) -> Iterator[T]:
        for blocks in self._blocks.values():
            yield from blocks

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, block: T) -> None:
        size = block.size
        blocks = self._blocks.get(size)
        if blocks is not None:
            blocks[block] = None
            return
        self._blocks[size] = {block: None}
        which = _class_of(size)
        if self._mask >> which & 1:
            insort(self._classes[which], size)
        else:
            self._classes[which] = [size]
            self._mask |= 1 << which

    def remove(self, block: T) -> None:
        size = block.size
        blocks = self._blocks[size]
        del blocks[block]
        if blocks:
            return
        del self._blocks[size]
        which = _class_of(size)
        sizes = self._classes[which]
        if len(sizes) > 1:
            del sizes[bisect_left(sizes, size)]
        else:
            del self._classes[which]
            self._mask ^= 1 << which

    def best(self, size: int) -> T | None:
        """The newest of the smallest blocks of at least `size` bytes, left where it is."""
        blocks = self._blocks.get(size)
        if blocks is None:
            found = self._next_size(size)
            if found is None:
                return None
            blocks = self._blocks[found]
        return next(reversed(blocks))

    def largest(self) -> int:
        """The size of the largest block, 0 if there is none."""
        return self._classes[self._mask.bit_length() - 1][-1] if self._mask else 0

    def _next_size(self, size: int) -> int | None:
        which = _class_of(size)
        if self._mask >> which & 1:
            sizes = self._classes[which]
            if sizes[-1] >= size:
                return sizes[bisect_left(sizes, size)]
        above = self._mask >> which + 1
        if not above:
            return None
        return self._classes[which + (above & -above).bit_length()][0]


def _class_of(size: int) -> int:
    """Grows with the size: its exponent, then its five bits after the first."""
    exponent = size.bit_length() - 6
    return (exponent << 5) + (size >> exponent) if exponent > 0 else size
