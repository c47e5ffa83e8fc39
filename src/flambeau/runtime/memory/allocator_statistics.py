"""`Ledger`: the statistics of an allocator, current and peak, computed from its event log (`event_log.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flambeau.runtime.memory.log_entries import (
    ALLOC,
    ALLOC_PART,
    CODES,
    CUT,
    DONE,
    DONE_PART,
    FREE,
    FREE_PART,
    GROW,
    LARGE,
    LOOK,
    MAP,
    ORDER,
    REFUSE,
    REQUEST,
    SHRINK,
    SMALL,
    UNMAP,
    Array,
    Batch,
    Entry,
    codes_and_sizes,
    codes_sizes_requests,
)

ALL = 2  # the sum of LARGE and SMALL
POOLS = ("large_pool", "small_pool", "all")

FIGURES = (
    "allocation", "allocated_bytes", "requested_bytes", "active", "active_bytes", "inactive_split",
    "inactive_split_bytes", "segment", "reserved_bytes",
)  # fmt: skip
ALLOCATION, ALLOCATED_BYTES, REQUESTED_BYTES, ACTIVE, ACTIVE_BYTES = range(5)
INACTIVE, INACTIVE_BYTES, SEGMENT, RESERVED_BYTES = range(5, 9)

# The changes that an event of each code makes to: allocations, active blocks, inactive split blocks, segments and
# reserved bytes. The size fields of a CUT contain its number of blocks.
_EFFECTS = {
    ALLOC: (1, 1, 0, 0, 0), ALLOC_PART: (1, 1, -1, 0, 0), FREE: (-1, -1, 0, 0, 0), FREE_PART: (-1, -1, 1, 0, 0),
    REQUEST: (-1, 0, 0, 0, 0), DONE: (0, -1, 0, 0, 0), DONE_PART: (0, -1, 1, 0, 0), CUT: (0, 0, 1, 0, 0),
    GROW: (0, 0, 0, 1, 1), SHRINK: (0, 0, 0, -1, -1), REFUSE: (0, 0, 0, 0, 0), LOOK: (0, 0, 0, 0, 0),
    ORDER: (0, 0, 0, 0, 0), MAP: (0, 0, 0, 0, 1), UNMAP: (0, 0, 0, 0, -1),
}  # fmt: skip
_OF_CODE = np.array([_EFFECTS[code & ~1] for code in CODES], np.int64).T
_HOLDS = _OF_CODE[0].tolist()  # event code -> change of the number of allocations


class Ledger:
    """Current value, peak, total increase and total decrease of each statistic of each pool.

    `current[pool][figure]` and so on are indexed by the constants above. Not locked: the allocator's lock protects it.
    """

    __slots__ = ("current", "decrease", "increase", "peak")

    def __init__(self) -> None:
        self.current = _zeros()
        self.peak = _zeros()
        self.increase = _zeros()
        self.decrease = _zeros()

    def post(self, entries: Sequence[Entry] | Batch) -> None:
        """Update the statistics by these events, in order. Many events are faster as a batch."""
        if isinstance(entries, Batch):
            self._post_batch(entries)
            return
        for code, size, requested in codes_sizes_requests(entries):
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
        """Add a batch by running sums: one column for each event, one row for each statistic. Segments are added
        singly.
        """
        n = len(batch)
        codes, sizes, requested = np.ascontiguousarray(batch.numbers.T[:3])
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
        """Add one pool's running sums over a batch, and the total of their increases, to its statistics."""
        current, peak = self.current[row], self.peak[row]
        columns = zip(sums[:, -1].tolist(), sums.max(axis=1).tolist(), rises.tolist(), strict=True)
        for figure, (net, high, rise) in enumerate(columns):
            peak[figure] = max(peak[figure], current[figure] + high)
            current[figure] += net
            self.increase[row][figure] += rise
            self.decrease[row][figure] += rise - net

    def reset_peaks(self) -> None:
        """Reset the peaks to the current values."""
        self.peak = [list(row) for row in self.current]

    def reset_accumulated(self) -> None:
        """Reset the total increases and decreases to 0."""
        self.increase = _zeros()
        self.decrease = _zeros()

    def figures(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return all statistics as `figures()[figure][pool]["current"]`, under PyTorch's names."""
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
    """A single statistic: current, peak, total increase (`allocated`), total decrease (`freed`)."""

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
    """Return the running sums of each row of changes, and the sum of the positive changes."""
    return np.cumsum(changes, axis=1), np.maximum(changes, 0).sum(axis=1)


def _zeros() -> list[list[int]]:
    return [[0] * len(FIGURES) for _ in POOLS]


def allocated_bytes_of(entries: Sequence[Entry]) -> int:
    """Return by how much these events change the allocated bytes of all pools."""
    holds = _HOLDS
    return sum([holds[code] * size for code, size in codes_and_sizes(entries)])


def format_size(nbytes: int) -> str:
    """Return a size as PyTorch writes it: "512 bytes", "2.00 MiB"."""
    size = float(nbytes)
    if size < 1024:
        return f"{nbytes} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:.2f} {unit}"
