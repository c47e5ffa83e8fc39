"""`Holes`: free blocks by size. The best fit is exact, and found at a cost that does not depend on how many there are.

# Note [Two levels of bits]
Sizes are multiples of 512 bytes; one bit says whether there is a block of a size. 512 such bits make a row, and
one more int says which rows have any. So the smallest size that fits is the lowest bit above the request's own
place in its row, or else in the next row that has one: a handful of operations on ints of 512 bits. That reaches to
128 MiB; larger sizes, of which a device holds few, are kept in one sorted list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

_BITS = 9
_ROW = (1 << _BITS) - 1
_HUGE = 1 << 9 + _BITS + _BITS  # bytes


class Sized(Protocol):
    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Holes(Generic[T]):
    """Free blocks; those of one size are taken newest first. See Note [Two levels of bits]."""

    __slots__ = ("_blocks", "_huge", "_rows", "_summary")

    def __init__(self) -> None:
        self._blocks: dict[int, dict[T, None]] = {}  # by size
        self._rows = [0] * (_ROW + 1)
        self._summary = 0
        self._huge: list[int] = []

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
        if size >= _HUGE:
            insort(self._huge, size)
            return
        unit = size >> 9
        row = unit >> _BITS
        bits = self._rows[row]
        if not bits:
            self._summary |= 1 << row
        self._rows[row] = bits | 1 << (unit & _ROW)

    def remove(self, block: T) -> None:
        size = block.size
        blocks = self._blocks[size]
        del blocks[block]
        if not blocks:
            self._forget(size)

    def best(self, size: int) -> T | None:
        """The newest of the smallest blocks of at least `size` bytes, left where it is."""
        blocks = self._blocks.get(size)
        if blocks is None:
            found = self._next(size)
            if not found:
                return None
            blocks = self._blocks[found]
        return next(reversed(blocks))

    def take(self, size: int) -> T | None:
        """The same, taken out."""
        blocks = self._blocks.get(size)
        if blocks is None:
            size = self._next(size)
            if not size:
                return None
            blocks = self._blocks[size]
        block, _ = blocks.popitem()
        if not blocks:
            self._forget(size)
        return block

    def from_size(self, size: int) -> Iterator[T]:
        """The blocks of at least `size` bytes, the smallest first. Nothing may be changed meanwhile."""
        if size not in self._blocks:
            size = self._next(size)
        while size:
            yield from reversed(self._blocks[size])
            size = self._next(size + 512)

    def largest(self) -> int:
        """The size of the largest block, 0 if there is none."""
        if self._huge:
            return self._huge[-1]
        if not self._summary:
            return 0
        row = self._summary.bit_length() - 1
        return (row << _BITS) + self._rows[row].bit_length() - 1 << 9

    def _next(self, size: int) -> int:
        """The smallest size there is from `size` on; 0 if there is none."""
        if size < _HUGE:
            unit = size >> 9
            row = unit >> _BITS
            bits = self._rows[row] >> (unit & _ROW)
            if bits:
                return unit + (bits & -bits).bit_length() - 1 << 9
            rows = self._summary >> row + 1
            if rows:
                row += (rows & -rows).bit_length()
                bits = self._rows[row]
                return (row << _BITS) + (bits & -bits).bit_length() - 1 << 9
        at = bisect_left(self._huge, size)
        return self._huge[at] if at < len(self._huge) else 0

    def _forget(self, size: int) -> None:
        """The last block of this size is gone."""
        del self._blocks[size]
        if size >= _HUGE:
            del self._huge[bisect_left(self._huge, size)]
            return
        unit = size >> 9
        row = unit >> _BITS
        bits = self._rows[row] ^ 1 << (unit & _ROW)
        self._rows[row] = bits
        if not bits:
            self._summary ^= 1 << row
