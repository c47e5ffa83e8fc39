"""Entries of a journal: what happened to the memory of one device, event by event, each as 48 bytes.

# Note [Packed entries]
An allocation and a free each write an entry, so entries must cost next to nothing, to write and to read. An entry is
`bytes`: six numbers as the machine holds them, put together once, when the block gets its size (`label` in blocks.py).
To write one is to append it to a list; to read thousands is to join them and to look at the result as an array. The
garbage collector does not look at bytes, as it would at tuples.

The numbers are: a code, a size, what was requested of it, an address, the stream, and the MemPool (`PoolId` as one
number). While a program has its history recorded, an entry may be a tuple of these bytes and its notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, cast

import numpy as np

Entry = bytes | tuple[bytes, Any, int]  # notes: the stack, the time in nanoseconds
Array = np.ndarray[Any, Any]

LARGE: Final = 0
SMALL: Final = 1

# Codes of the events. Add LARGE or SMALL, the kind of pool. "PART": of a block whose segment holds other blocks too.
# CUT is a split of a free block, or a merge: size and requested are then the bytes and the free blocks that it adds.
# MAP and UNMAP are of expandable segments. The field of the address holds the free bytes for REFUSE and, for ORDER, the
# stream that this stream is ordered after and whose blocks it reuses.
(
    ALLOC,
    ALLOC_PART,
    FREE,
    FREE_PART,
    REQUEST,
    DONE,
    DONE_PART,
    CUT,
    GROW,
    SHRINK,
    REFUSE,
    LOOK,
    ORDER,
    MAP,
    UNMAP,
) = range(0, 30, 2)
CODES = range(UNMAP + 2)

_NUMBERS = Struct("=6q")
_BODY = Struct("=5q")
_FIRST_TWO, _FIRST_THREE = Struct("=2q32x"), Struct("=3q24x")

entry: Final = _NUMBERS.pack
"""`entry(code, size, requested, ptr, stream, owner)`"""

body: Final = _BODY.pack
"""`body(size, requested, ptr, stream, owner)`: an entry but for its head, the code."""

HEADS = [Struct("=q").pack(code) for code in CODES]

_SHOWN = np.array([code & ~1 not in (CUT, ORDER) for code in CODES])  # actions that histories show


def codes_and_sizes(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Yield code and size of each entry of a short list; a `Batch` is faster for long ones."""
    return cast("Iterator[tuple[int, int]]", _FIRST_TWO.iter_unpack(_apart(entries)[0]))


def codes_sizes_requests(entries: Sequence[Entry]) -> Iterator[tuple[int, int, int]]:
    """Yield code, size and requested size of each entry of a short list."""
    return cast("Iterator[tuple[int, int, int]]", _FIRST_THREE.iter_unpack(_apart(entries)[0]))


def _apart(entries: Sequence[Entry]) -> tuple[bytes, list[tuple[Any, ...]] | None]:
    """Return the numbers of the entries as one bytes object, and the columns of their notes; None if no entry has
    notes.
    """
    try:
        return b"".join(cast("Sequence[bytes]", entries)), None
    except TypeError:
        pairs = [(e, (None, None)) if isinstance(e, bytes) else (e[0], e[1:]) for e in entries]
    return b"".join([numbers for numbers, _ in pairs]), list(zip(*[notes for _, notes in pairs], strict=True))


class Batch:
    """A sequence of log entries as NumPy arrays.

    Attributes:
        numbers: One row for each entry, read-only.
        events: Number of entries that the history shows.
        notes: Columns of additional data of the entries; None if there are none.
    """

    __slots__ = ("events", "notes", "numbers")

    def __init__(self, entries: Sequence[Entry]) -> None:
        data, self.notes = _apart(entries)
        self.numbers = np.frombuffer(data, np.int64).reshape(-1, 6)
        self.events = int(np.count_nonzero(_SHOWN[self.numbers[:, 0]]))

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, event: int) -> int:
        """Return the index of the entry of event number `event`."""
        return int(np.flatnonzero(_SHOWN[self.numbers[:, 0]])[event])
