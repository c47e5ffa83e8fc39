"""The state of events that several processes use: which process recorded last, and whether that is complete.

See Note [Events of other processes] in virtual_ipc.py.
"""

from __future__ import annotations

import ctypes
import os

from flambeau.core.errors import DriverError
from flambeau.core.ipc.shared_memory import Door, Mapping, anonymous

_FIELDS = (
    3  # fields of a cell: number of the last record, of the last complete one, nanoseconds until it completes
)
_CELL = 8 * _FIELDS
_NBYTES = _CELL * 32768


class SharedEvent:
    """An event's cell in shared memory, with the state that this process knows.

    Attributes:
        number: The position of the cell in its file.
        own: The number of this process's last record; 0 before the first.
    """

    __slots__ = ("_cell", "_due", "_mapping", "_seen", "number", "own")

    def __init__(self, mapping: Mapping, number: int) -> None:
        self.number = number
        self._mapping = mapping  # keeps the shared memory mapped
        self._cell = (ctypes.c_uint64 * _FIELDS).from_address(mapping.ptr + number * _CELL)
        self.own = self._seen = self._due = 0

    def publish(self, remaining_ns: int) -> None:
        """Publish a record of this process that completes after `remaining_ns` of simulated time."""
        self._cell[2] = remaining_ns
        self._cell[0] = self.own = self._cell[0] + 1

    def complete(self) -> None:
        """Publish that this process's host saw the last record complete."""
        self._cell[1] = self._cell[0]

    @property
    def is_complete(self) -> bool:
        """Return True if a process saw the last record complete, or there is none."""
        return self._cell[1] >= self._cell[0]

    @property
    def is_foreign(self) -> bool:
        """Return True if another process recorded last."""
        return self._cell[0] != self.own

    def due(self, now: int) -> int:
        """Return the time on this process's clock at which another process's record completes.

        Args:
            now: The time of this process. The remaining time counts from when it first looks at the record.
        """
        if self._seen != self._cell[0]:
            self._seen, self._due = self._cell[0], now + self._cell[2]
        return now if self.is_complete else self._due


class EventCells:
    """The cells that this process shares with others, and those of other processes that it has mapped."""

    def __init__(self) -> None:
        self._fd = -1
        self._own: Mapping | None = None
        self._free: list[int] = []
        self._count = 0
        self._others: dict[Door, Mapping] = {}

    def take(self) -> SharedEvent:
        """Return a new cell. Raises DriverError if too many events are shared."""
        if self._own is None:
            self._fd = anonymous(_NBYTES)
            self._own = Mapping(self._fd, _NBYTES)
        if not self._free and self._count == _NBYTES // _CELL:
            raise DriverError(
                f"CUDA error: out of memory: this process shares {self._count} events already; delete events that no "
                "process needs"
            )
        self._count += not self._free
        cell = SharedEvent(self._own, self._free.pop() if self._free else self._count - 1)
        cell.complete()  # end the record of the event that used the cell before
        cell.own = 0
        return cell

    def door_of(self, cell: SharedEvent) -> Door | None:
        """Return the `Door` through which other processes find a cell; None if another process owns it."""
        return Door.of(self._fd) if cell._mapping is self._own else None

    def give_back(self, cell: SharedEvent) -> None:
        """Make a cell available to later events."""
        if cell._mapping is self._own:
            self._free.append(cell.number)

    def open(self, door: Door, number: int) -> SharedEvent:
        """Map and return the cell of another process's event. Raises ProcessLookupError if that process has ended."""
        if door.pid == os.getpid() and self._own is not None:
            return SharedEvent(self._own, number)
        mapping = self._others.get(door)
        if mapping is None:
            fd = door.enter()
            try:
                mapping = self._others[door] = Mapping(fd, _NBYTES)
            finally:
                os.close(fd)
        return SharedEvent(mapping, number)

    def clear(self) -> None:
        """Close the file. Processes that have mapped it keep their mapping."""
        self._others.clear()
        if self._fd >= 0:
            os.close(self._fd)
        self.__init__()  # type: ignore[misc]
