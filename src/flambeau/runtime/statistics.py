"""`Ledger`: what an allocator handed out, holds and held at most, made up from its journal.

# Note [The journal]
Exact peaks of seven figures in three pools cost more to keep up than the allocation itself. So the hot
path writes one tuple per event into a list, the journal, and nothing else; the ledger is made up from it
when somebody looks, or when it is long (with NumPy, 0.2 us an event). A tuple, the posting, is
`(pool, allocation, allocated_bytes, requested_bytes, active, active_bytes, inactive_split,
inactive_split_bytes)`: the pool (0 large, 1 small) and what the event adds to each figure of it.
`list.append` is atomic, so that a destructor may write at any time, in any thread, without a lock. A block
enters a free list only after its posting, so the journal's order is one in which all could have happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

Posting = tuple[int, int, int, int, int, int, int, int]

LARGE, SMALL, ALL = 0, 1, 2
POOLS = ("large_pool", "small_pool", "all")

JOURNALED = (
    "allocation", "allocated_bytes", "requested_bytes", "active", "active_bytes", "inactive_split",
    "inactive_split_bytes",
)  # fmt: skip
FIGURES = (*JOURNALED, "segment", "reserved_bytes")
ALLOCATED_BYTES, ACTIVE_BYTES = FIGURES.index("allocated_bytes"), FIGURES.index("active_bytes")
SEGMENT, RESERVED_BYTES = FIGURES.index("segment"), FIGURES.index("reserved_bytes")

_FEW = 24  # postings that a plain loop adds up faster than NumPy


class Ledger:
    """Current value, peak, total increase and total decrease of each figure of each pool.

    `current[pool][figure]` and so on, by the indices above. Not locked: its allocator sees to that.
    """

    __slots__ = ("current", "decrease", "increase", "peak")

    def __init__(self) -> None:
        self.current = [[0] * len(FIGURES) for _ in POOLS]
        self.peak = [[0] * len(FIGURES) for _ in POOLS]
        self.increase = [[0] * len(FIGURES) for _ in POOLS]
        self.decrease = [[0] * len(FIGURES) for _ in POOLS]

    def post(self, postings: Sequence[Posting]) -> None:
        """Make up the figures for events, in their order."""
        if len(postings) > _FEW:
            self._post_many(postings)
            return
        for pool, *changes in postings:
            for figure, change in enumerate(changes):
                if change:
                    self.add(pool, figure, change)

    def add(self, pool: int, figure: int, change: int) -> None:
        """Change one figure of a pool, and of all pools together, now."""
        for row in (pool, ALL):
            current = self.current[row]
            current[figure] += change
            if change < 0:
                self.decrease[row][figure] -= change
                continue
            self.increase[row][figure] += change
            if current[figure] > self.peak[row][figure]:
                self.peak[row][figure] = current[figure]

    def _post_many(self, postings: Sequence[Posting]) -> None:
        """By running sums. A steady program writes few distinct postings, over and over: one column each."""
        ids = np.fromiter(map(id, postings), np.int64, len(postings))
        _, first, codes = np.unique(ids, return_index=True, return_inverse=True)
        distinct = chain.from_iterable([postings[i] for i in first.tolist()])
        table = np.fromiter(distinct, np.int64).reshape(-1, 1 + len(JOURNALED)).T
        changes = table[1:]
        small = changes * table[0]  # 1 where the pool is the small one
        times = np.bincount(codes)
        running = np.zeros((len(JOURNALED), len(postings)), np.int64)
        for row, part in ((LARGE, changes - small), (SMALL, small)):
            sums = np.cumsum(part.take(codes, axis=1), axis=1)
            running += sums
            self._take_over(row, sums, np.maximum(part, 0) @ times)
        self._take_over(ALL, running, np.maximum(changes, 0) @ times)

    def _take_over(self, row: int, sums: np.ndarray[Any, Any], rises: np.ndarray[Any, Any]) -> None:
        current, peak = self.current[row], self.peak[row]
        highs = sums.max(axis=1).tolist()
        for figure, (net, high, rise) in enumerate(
            zip(sums[:, -1].tolist(), highs, rises.tolist(), strict=True)
        ):
            peak[figure] = max(peak[figure], current[figure] + high)
            current[figure] += net
            self.increase[row][figure] += rise
            self.decrease[row][figure] += rise - net

    def reset_peaks(self) -> None:
        """Peaks start again from the current values."""
        self.peak = [list(row) for row in self.current]

    def reset_accumulated(self) -> None:
        """Total increases and decreases start again from 0."""
        self.increase = [[0] * len(FIGURES) for _ in POOLS]
        self.decrease = [[0] * len(FIGURES) for _ in POOLS]

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


def allocated_bytes_of(postings: Iterable[Posting]) -> int:
    """What events add to the allocated bytes of all pools."""
    return sum([posting[1 + ALLOCATED_BYTES] for posting in postings])


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
