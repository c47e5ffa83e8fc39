"""The allocator's event log, from which statistics and history are derived.

# Note [The journal]
Maintaining exact peaks of nine statistics in three pools costs more than the allocation itself. So the hot path
appends one entry per event to a list, and nothing else (`log_entries.py`). The ledger is brought up to date when a
caller reads it, or when the list is long (with NumPy, less than 0.1 us per event). The same entries, kept for a
while, are the allocator's history (`history.py`), so recording the history costs nothing more.

`list.append` is atomic: a destructor may log at any time, in any thread, without a lock. A block enters a free list
only after its entry was written, so the log's order is a possible order of the events.
"""

from __future__ import annotations

from typing import Final

from flambeau.runtime.memory.allocator_statistics import ALL, ALLOCATED_BYTES, Ledger, allocated_bytes_of
from flambeau.runtime.memory.blocks import Block
from flambeau.runtime.memory.history import Columns, History, Recording
from flambeau.runtime.memory.log_entries import Batch, Entry
from flambeau.runtime.memory.reentrant_lock import AllocatorLock

LONG: Final = 2048
"""So many entries are to be settled."""

_FEW = 24  # entries that a plain loop adds faster than NumPy


class EventLog:
    """The events of one allocator.

    Attributes:
        entries: Entries that are not in the ledger yet. The list object never changes; the hot path keeps it.
        recording: The active history recording; None if there is none. `book` and `write` pass events to it, and
            require the allocator's lock.
    """

    __slots__ = ("_added", "_history", "_ledger", "_settling", "_summed", "_turn", "entries", "recording")

    def __init__(self, turn: AllocatorLock) -> None:
        self.entries: list[Entry] = []
        self.recording: Recording | None = None
        self._ledger = Ledger()
        self._history = History()
        self._settling = False
        self._summed = 0  # the number of entries in the ledger
        self._added = 0  # the allocated bytes of these entries
        self._turn = turn

    def book(self, block: Block) -> None:
        """Record that a block was allocated."""
        if self.recording is None:
            self.entries.append(block.alloc_entry)
        else:
            block.frames, time = self.recording.notes()
            self.entries.append((block.alloc_entry, block.frames, time))

    def write(self, entry: bytes) -> None:
        """Record a rare event, such as a new segment."""
        self.entries.append(entry if self.recording is None else (entry, *self.recording.notes()))

    def settle(self) -> None:
        """Update the statistics and the history. Entries that a finalizer writes during the update are left for the
        next one.
        """
        with self._turn:
            if self._settling:
                return
            self._settling = True
            try:
                count = len(self.entries)
                entries = self.entries[:count]
                self._summed = self._added = 0
                del self.entries[:count]
                packed = entries if count < _FEW else Batch(entries)
                self._ledger.post(packed)
                self._history.add(packed)
            finally:
                self._settling = False

    def allocated_bytes(self) -> int:
        """Return the bytes of allocated blocks, in rounded sizes."""
        with self._turn:
            count = len(self.entries)
            if count > self._summed:  # computing all statistics would take longer
                self._added += allocated_bytes_of(self.entries[self._summed : count])
                self._summed = count
            return self._ledger.current[ALL][ALLOCATED_BYTES] + self._added

    def ledger(self) -> Ledger:
        """Return the statistics, after an update."""
        self.settle()
        return self._ledger

    def history(self) -> Columns:
        """Return the stored events, the latest last."""
        with self._turn:
            self.settle()
            return self._history.read()

    def record(self, recording: Recording | None) -> None:
        """Record the call sites of requests from now on; None stops that."""
        self.settle()
        self.recording = recording
        self._history.begin(recording)
