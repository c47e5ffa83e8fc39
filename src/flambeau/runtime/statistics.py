"""`Ledger`: what an allocator handed out, holds and held at most, made up from its journal (`journal.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

Entry = tuple[Any, ...]  # (code, size, requested, ptr, pool, *notes)
NOTES = None, None  # of an entry that has none: the stack, the time in nanoseconds
Array = np.ndarray[Any, Any]

LARGE, SMALL, ALL = 0, 1, 2
POOLS = ("large_pool", "small_pool", "all")

FIGURES = (
    "allocation", "allocated_bytes", "requested_bytes", "active", "active_bytes", "inactive_split",
    "inactive_split_bytes", "segment", "reserved_bytes",
)  # fmt: skip
ALLOCATION, ALLOCATED_BYTES, REQUESTED_BYTES, ACTIVE, ACTIVE_BYTES = range(5)
INACTIVE, INACTIVE_BYTES, SEGMENT, RESERVED_BYTES = range(5, 9)

# Codes: what happened. Add LARGE or SMALL, the kind of pool. "Part": of a segment that holds other blocks too.
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

# What an event of a code adds: to allocations, to active blocks, to inactive parts, to segments, to reserved bytes. CUT
# is a hole that became two parts, or the reverse: `size` and `requested` are then the bytes and the parts that it adds.
# MAP and UNMAP are of segments that grow. ORDER: the pool took over blocks of a stream that it comes after; that one
# stands in the place of `ptr`.
_EFFECTS = {
    ALLOC: (1, 1, 0, 0, 0), ALLOC_PART: (1, 1, -1, 0, 0), FREE: (-1, -1, 0, 0, 0), FREE_PART: (-1, -1, 1, 0, 0),
    REQUEST: (-1, 0, 0, 0, 0), DONE: (0, -1, 0, 0, 0), DONE_PART: (0, -1, 1, 0, 0), CUT: (0, 0, 1, 0, 0),
    GROW: (0, 0, 0, 1, 1), SHRINK: (0, 0, 0, -1, -1), REFUSE: (0, 0, 0, 0, 0), LOOK: (0, 0, 0, 0, 0),
    ORDER: (0, 0, 0, 0, 0), MAP: (0, 0, 0, 0, 1), UNMAP: (0, 0, 0, 0, -1),
}  # fmt: skip
_OF_CODE = np.array([_EFFECTS[op] for op in _EFFECTS for _ in (LARGE, SMALL)], np.int64).T
_HOLDS = [row[0] for row in _EFFECTS.values() for _ in (LARGE, SMALL)]  # by code: change of allocations
_SHOWN = np.array(
    [op not in (CUT, ORDER) for op in _EFFECTS for _ in (LARGE, SMALL)]
)  # by code: in histories


class Batch:
    """Entries in their order, by column: NumPy adds them up, and they take 40 bytes each.

    events: how many of them histories show. notes: the columns of what they say beyond; None: no entry says anything.
    """

    __slots__ = ("codes", "events", "notes", "pools", "ptrs", "requested", "sizes")

    def __init__(self, entries: Sequence[Entry]) -> None:
        n = len(entries)
        columns = [np.fromiter(map(itemgetter(k), entries), np.int64, n) for k in range(4)]
        self.codes, self.sizes, self.requested, self.ptrs = columns
        self.events = int(np.count_nonzero(_SHOWN[self.codes]))
        self.pools = list(map(itemgetter(4), entries))
        noted = max(map(len, entries)) > 5
        self.notes = list(zip(*[(entry + NOTES)[5:7] for entry in entries], strict=True)) if noted else None

    def __len__(self) -> int:
        return len(self.pools)

    def place(self, event: int) -> int:
        """At which entry the event of a number, from 0 on, is."""
        return int(np.flatnonzero(_SHOWN[self.codes])[event])

    def entries(self) -> Iterator[Entry]:
        """What it was made of, each with notes, be they None."""
        columns = [c.tolist() for c in (self.codes, self.sizes, self.requested, self.ptrs)]
        return zip(
            *columns, self.pools, *(self.notes or map(repeat, NOTES)), strict=False
        )  # repeat() has no end


class Ledger:
    """Current value, peak, total increase and total decrease of each figure of each pool.

    `current[pool][figure]` and so on, by the indices above. Not locked: its allocator sees to that.
    """

    __slots__ = ("current", "decrease", "increase", "peak")

    def __init__(self) -> None:
        self.current = _zeros()
        self.peak = _zeros()
        self.increase = _zeros()
        self.decrease = _zeros()

    def post(self, entries: Sequence[Entry] | Batch) -> None:
        """Make up the figures for events, in their order: for many of them a batch is faster."""
        if isinstance(entries, Batch):
            self._post_batch(entries)
            return
        for code, size, requested, *_ in entries:
            a, b, c, d, e = _EFFECTS[code & ~1]
            parts = requested if code & ~1 == CUT else c
            changes = (a, a * size, a * requested, b, b * size, parts, c * size, d, e * size)
            for figure, change in enumerate(changes):
                if change:
                    self._add(code & 1, figure, change)

    def _add(self, pool: int, figure: int, change: int) -> None:
        for row in (pool, ALL):
            current = self.current[row]
            current[figure] += change
            if change < 0:
                self.decrease[row][figure] -= change
                continue
            self.increase[row][figure] += change
            if current[figure] > self.peak[row][figure]:
                self.peak[row][figure] = current[figure]

    def _post_batch(self, batch: Batch) -> None:
        """By running sums: one column an event, one row a figure. Segments, which are few, come one by one."""
        n, codes, sizes, requested = len(batch), batch.codes, batch.sizes, batch.requested
        a, b, c, d, e = _OF_CODE.take(codes, axis=1)
        changes = np.empty((SEGMENT, n), np.int64)
        changes[ALLOCATION], changes[ACTIVE] = a, b
        changes[INACTIVE] = np.where(codes & ~1 == CUT, requested, c)
        np.multiply(a, sizes, out=changes[ALLOCATED_BYTES])
        np.multiply(a, requested, out=changes[REQUESTED_BYTES])
        np.multiply(b, sizes, out=changes[ACTIVE_BYTES])
        np.multiply(c, sizes, out=changes[INACTIVE_BYTES])
        for at in np.flatnonzero(e).tolist():
            if d[at]:
                self._add(int(codes[at]) & 1, SEGMENT, int(d[at]))
            self._add(int(codes[at]) & 1, RESERVED_BYTES, int(e[at] * sizes[at]))
        sums, rises = _course(changes)
        self._take_over(ALL, sums, rises)
        small = codes & 1
        count = int(small.sum())
        if count in (0, n):
            self._take_over(SMALL if count else LARGE, sums, rises)
            return
        small_sums, small_rises = _course(changes * small)
        self._take_over(SMALL, small_sums, small_rises)
        self._take_over(LARGE, sums - small_sums, rises - small_rises)

    def _take_over(self, row: int, sums: Array, rises: Array) -> None:
        """Add to a pool what its figures came to, event by event, and how much they rose in all."""
        current, peak = self.current[row], self.peak[row]
        columns = zip(sums[:, -1].tolist(), sums.max(axis=1).tolist(), rises.tolist(), strict=True)
        for figure, (net, high, rise) in enumerate(columns):
            peak[figure] = max(peak[figure], current[figure] + high)
            current[figure] += net
            self.increase[row][figure] += rise
            self.decrease[row][figure] += rise - net

    def reset_peaks(self) -> None:
        """Peaks start again from the current values."""
        self.peak = [list(row) for row in self.current]

    def reset_accumulated(self) -> None:
        """Total increases and decreases start again from 0."""
        self.increase = _zeros()
        self.decrease = _zeros()

    def figures(self) -> dict[str, dict[str, dict[str, int]]]:
        """Everything, as `figures()[figure][pool]["current"]`, under PyTorch's names."""
        kinds = {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.increase,
            "freed": self.decrease,
        }
        return {
            name: {
                pool: {kind: rows[row][figure] for kind, rows in kinds.items()}
                for row, pool in enumerate(POOLS)
            }
            for figure, name in enumerate(FIGURES)
        }


class Tally:
    """One figure by itself: current, peak, total increase (`allocated`), total decrease (`freed`)."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, change: int) -> None:
        self.current += change
        if change < 0:
            self.freed -= change
            return
        self.allocated += change
        self.peak = max(self.peak, self.current)

    def reset_peak(self) -> None:
        self.peak = self.current

    def reset_accumulated(self) -> None:
        self.allocated = self.freed = 0

    def figures(self) -> dict[str, int]:
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


def _course(changes: Array) -> tuple[Array, Array]:
    """The running sums of each row of changes, and the sum of those above 0."""
    return np.cumsum(changes, axis=1), np.maximum(changes, 0).sum(axis=1)


def _zeros() -> list[list[int]]:
    return [[0] * len(FIGURES) for _ in POOLS]


def allocated_bytes_of(entries: Iterable[Entry]) -> int:
    """What events add to the allocated bytes of all pools."""
    holds = _HOLDS
    return sum([holds[entry[0]] * entry[1] for entry in entries])


def format_size(nbytes: int) -> str:
    """A size as PyTorch writes it: "512 bytes", "2.00 MiB"."""
    size = float(nbytes)
    if size < 1024:
        return f"{nbytes} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:.2f} {unit}"
