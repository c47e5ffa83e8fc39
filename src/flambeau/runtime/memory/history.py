"""`History`: the recent events of an allocator. `Recording`: the call site of a request, if the program records it.

# Note [Stacks]
A stack is stored as the ids of its code objects and the positions in them: numbers, which hash fast. Equal stacks are
found by them and shared; only a new stack keeps its code objects, which keeps their ids valid. Names and lines are
looked up when a program reads the history.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flambeau.core.callsite import Site, is_command, is_inside, line_of
from flambeau.runtime.memory.log_entries import Array, Batch, Entry

if TYPE_CHECKING:
    from flambeau.runtime.memory_reports.memory_metadata import Labels

_KEPT = 1 << 15  # entries that are kept without a recording
_PACKED = 256  # number of entries that form a batch
_DEEPEST = 64  # frames of a recorded stack


class Stack:
    """A call stack of the program: code objects and positions in them, the innermost first."""

    __slots__ = ("_frames", "sites")

    def __init__(self, sites: tuple[Site, ...]) -> None:
        self.sites = sites
        self._frames: list[dict[str, Any]] | None = None

    def frames(self) -> list[dict[str, Any]]:
        """Return each frame's filename, line and name, as in PyTorch's snapshots. A command that runs programs ends the
        list.
        """
        if self._frames is None:
            self._frames = [
                {"filename": site[0].co_filename, "line": line_of(site), "name": site[0].co_name}
                for site in takewhile(lambda site: not is_command(site[0].co_filename), self.sites)
            ]
        return self._frames

    @property
    def site(self) -> Site | None:
        """Return the innermost call site that belongs to the program."""
        return self.sites[0] if self.sites else None


class Recording:
    """The settings of `torch.cuda.memory._record_memory_history`.

    enabled: "state" (live memory only) or "all" (a history too). context: of whom to keep stacks: None, "state"
    and "alloc" (call sites of allocations), "all" (of frees too). max_entries: how many events are kept. clock:
    the time in nanoseconds. skip: actions that histories leave out. `labels`: the ranges that the program names
    meanwhile.
    """

    def __init__(
        self,
        enabled: str = "all",
        context: str | None = "all",
        max_entries: int = sys.maxsize,
        clear: bool = False,
        skip: Sequence[str] = (),
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.enabled = enabled
        self.context = context
        self.max_entries = max_entries
        self.clear = clear
        self.skip = frozenset(skip)
        self.labels: Labels | None = None
        self._clock = clock
        self._stacks: dict[tuple[int, ...], Stack] = {}

    def end(self) -> None:
        """Stop the recording."""
        if self.labels is not None:
            self.labels.end()

    def notes(self, free: bool = False) -> tuple[Stack | None, int]:
        """Return the call stack, if it is recorded, and the time in nanoseconds: the additional data of a log entry."""
        wanted = self.context == "all" or (self.context is not None and not free)
        return (self._stack() if wanted else None), self._clock()

    def _stack(self) -> Stack:
        frame: Any = sys._getframe(0)
        while frame is not None and is_inside(frame.f_code):
            frame = frame.f_back
        start = frame
        key: list[Any] = []
        while frame is not None and len(key) < 2 * _DEEPEST:
            key.append(id(frame.f_code))
            key.append(frame.f_lasti)
            frame = frame.f_back
        numbers = tuple(key)
        found = self._stacks.get(numbers)
        return self._new_stack(start, numbers) if found is None else found

    def _new_stack(self, frame: Any, numbers: tuple[int, ...]) -> Stack:
        sites: list[Site] = []
        while frame is not None and len(sites) < _DEEPEST:
            sites.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        made = self._stacks[numbers] = Stack(tuple(sites))
        return made


class Columns(NamedTuple):
    """Log entries as arrays: six numbers for each, its time in ns (-1: unknown), and the index of its stack in
    `stacks`.
    """

    numbers: Array
    time: Array
    stack: Array
    stacks: list[Stack | None]

    def at(self, which: Any) -> Columns:
        """Return the entries that this NumPy index selects."""
        return Columns(self.numbers[which], self.time[which], self.stack[which], self.stacks)


def columns_of(batches: Sequence[Batch]) -> Columns:
    """Return the entries of several batches joined into one."""
    numbers = np.concatenate([np.empty((0, 6), np.int64), *[batch.numbers for batch in batches]])
    if all(batch.notes is None for batch in batches):
        return Columns(numbers, np.full(len(numbers), -1), np.zeros(len(numbers), np.int64), [None])
    notes = [batch.notes or [(None,) * len(batch)] * 2 for batch in batches]
    stacks, times = (list(chain.from_iterable(column)) for column in zip(*notes, strict=True))
    places = {stack: place for place, stack in enumerate(dict.fromkeys(stacks))}
    return Columns(
        numbers,
        np.array([-1 if time is None else time for time in times], np.int64),
        np.array([places[stack] for stack in stacks], np.int64),
        list(places),
    )


class History:
    """The latest entries of an event log, packed into batches. Not locked: the allocator's lock protects it."""

    __slots__ = ("_batches", "_count", "_latest", "_most", "_open")

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._latest: list[Entry] = []  # entries that do not fill a batch yet
        self._count = 0  # the number of events in batches
        self._most = _KEPT
        self._open = True

    def add(self, entries: Sequence[Entry] | Batch) -> None:
        if not self._open:
            return
        if isinstance(entries, Batch):
            self._pack()
            self._keep(entries)
        else:
            self._latest += entries
            if len(self._latest) > _PACKED:
                self._pack()

    def _pack(self) -> None:
        if self._latest:
            latest, self._latest = self._latest, []
            self._keep(Batch(latest))

    def _keep(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._count += batch.events
        self._trim()

    def _trim(self) -> None:
        """Drop the oldest batches beyond the limit. The first remaining batch may hold more events than the limit
        allows.
        """
        while self._batches and self._count - self._batches[0].events >= self._most:
            self._count -= self._batches.popleft().events

    def begin(self, recording: Recording | None) -> None:
        """Set how many events to keep: the number that `recording` requests, or the default for None."""
        if recording is not None and recording.clear:
            self._batches.clear()
            self._latest, self._count = [], 0
        self._most = _KEPT if recording is None else recording.max_entries
        self._open = recording is None or recording.enabled == "all"
        self._pack()
        self._trim()

    def read(self) -> Columns:
        """Return the entries of the latest events, as many as the limit allows."""
        self._pack()
        too_many = self._count - self._most
        first = self._batches[0].place(too_many) if too_many > 0 else 0
        return columns_of(list(self._batches)).at(slice(first, None))
