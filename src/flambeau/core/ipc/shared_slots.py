"""`Slots`: shared counters by which receivers report that they have finished with memory that this process sent.

The sender allocates a slot for each sending. From then on only the receiver writes there: first its process id while it
holds the memory, then that it has finished. So two processes never change a slot at the same time.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from functools import lru_cache

from flambeau.core.host_arrays import bytes_at
from flambeau.core.ipc.shared_memory import Anonymous, Door, Mapping, anonymous, birth

_SLOT = struct.Struct("<iiQ")  # state, the receiver's process id, the start time of that process
_SENT, _HELD = 1, 2
_COUNT = 1 << 16
_NBYTES = _COUNT * _SLOT.size
_SENDERS = 64


def is_slot(place: int) -> bool:
    """Return True if a number is the place of a slot."""
    return 0 <= place < _NBYTES and place % _SLOT.size == 0


class Slots:
    """The slots of a sender in memory that receivers map. `door` is the address of this memory for receivers."""

    def __init__(self) -> None:
        self._memory = Anonymous(anonymous(_NBYTES), _NBYTES)
        self._bytes = bytes_at(self._memory.ptr, _NBYTES).data
        self._free = deque(range(0, _NBYTES, _SLOT.size))
        self.door = Door.of(self._memory.fd).pack()

    def take(self) -> int:
        """Return a slot for a message that this process is about to send.

        Raises:
            RuntimeError: If too many are underway.
        """
        try:
            slot = self._free.popleft()
        except IndexError:
            raise RuntimeError(
                f"{_COUNT:,} tensors were sent to other processes and not released there"
            ) from None
        _SLOT.pack_into(self._bytes, slot, _SENT, 0, 0)
        return slot

    def is_over(self, slot: int, thoroughly: bool = False) -> bool:
        """Return True if the receiver has done with it; `thoroughly`: or has ended."""
        state, pid, began = _SLOT.unpack_from(self._bytes, slot)
        return not state or bool(thoroughly and state == _HELD and birth(pid) != began)

    def give_back(self, slot: int) -> None:
        """Make the slot of a finished sending available."""
        self._free.append(slot)


class Senders:
    """The receiver's side: the memory of those who send, by its door."""

    def __init__(self) -> None:
        self._mapped: dict[bytes, Mapping] = {}

    def find(self, door: bytes) -> Mapping:
        """Return the sender's counters, mapped. Raises ProcessLookupError if the sender has ended."""
        found = self._mapped.get(door)
        if found is None:
            fd = Door.unpack(door).enter()
            try:
                found = Mapping(fd, _NBYTES)
            finally:
                os.close(fd)
            if len(self._mapped) >= _SENDERS:
                self._mapped.clear()
            self._mapped[door] = found
        return found


def finish(memory: Mapping, slot: int) -> None:
    """Record that this process has finished with received memory."""
    _SLOT.pack_into(bytes_at(memory.ptr, _NBYTES).data, slot, 0, 0, 0)


_own_birth = lru_cache(1)(birth)


class Receipt:
    """The record of a message that this process has received and whose memory it still uses."""

    __slots__ = ("__weakref__", "_holder", "_memory", "_slot")

    def __init__(self, memory: Mapping, slot: int) -> None:
        self._memory = memory
        self._slot = slot
        self._holder = os.getpid()
        began = _own_birth(self._holder)
        _SLOT.pack_into(bytes_at(memory.ptr, _NBYTES).data, slot, _HELD, self._holder, began)

    def end(self) -> None:
        """Record once that this process has finished with received memory; a forked copy does nothing."""
        if self._holder == os.getpid():
            self._holder = 0
            finish(self._memory, self._slot)
