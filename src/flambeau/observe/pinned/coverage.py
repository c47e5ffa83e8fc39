"""The bytes of a piece of memory that were written."""

from __future__ import annotations

from typing import Any

import numpy as np

from flambeau.observe.layout_overlap import Extent, draw, is_dense, span_of


class Coverage:
    """The bytes of `nbytes` that were written: one interval, and a mask if one interval is not enough."""

    __slots__ = ("_first", "_last", "_map", "_nbytes")

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._first = self._last = 0
        # mask of the bytes written by all commands; it may lack those of the interval
        self._map: np.ndarray[Any, Any] | None = None

    def mark(self, offset: int, extent: Extent) -> None:
        """Add a write at an offset."""
        start, end = max(offset, 0), min(offset + span_of(extent), self._nbytes)
        if start >= end or self.covers(start, end):
            return
        if is_dense(extent) and start <= self._last and self._first <= end:
            self._first, self._last = min(self._first, start), max(self._last, end)
            return
        if is_dense(extent) and self._first == self._last:
            self._first, self._last = start, end
            return
        if self._map is None:
            self._map = np.zeros(self._nbytes, np.uint8)
        if is_dense(extent):
            self._map[start:end] = 1
        elif start == offset and end == offset + span_of(extent):
            draw(self._map, offset, extent, 1)

    def covers(self, start: int, end: int) -> bool:
        """Return True if all bytes from `start` to `end` were written."""
        if self._first <= start and end <= self._last:
            return True
        if self._map is None:
            return start >= end
        before, after = self._map[start : min(end, self._first)], self._map[max(start, self._last) : end]
        return bool(before.all()) and bool(after.all())
