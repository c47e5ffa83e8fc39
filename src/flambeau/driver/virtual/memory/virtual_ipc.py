"""IPC of virtual GPUs: device memory that several processes map.

# Note [Exported memory] A device's memory is a private mapping of address space. When an allocation is
exported, its pages move to anonymous shared memory at an equal offset, and are mapped at their old place.
Addresses and arrays over them stay valid. Other data on the first and the last page moves as well, but only
this process can find it. The pages stay shared when the allocation is freed; their contents are discarded.
A process that opens the handle maps the pages into its own device, over a range that it allocates there. A
real device has such memory once; here it counts in both processes.

# Note [Events of other processes] Each process simulates its own devices with a clock that starts when they
are opened. An event of another process therefore has no time here. Such an event orders one process after
another's writes, while commands run lazily. An interprocess event therefore runs all commands before it as
soon as it is recorded. This changes no simulated time, but other streams can no longer run in between. A
process that waits for such an event therefore finds its writes done. The wait takes as long as the other
process's work had left when it recorded the event. The event's cell in shared memory has that number
(shared_events.py). If a host saw the event complete, the cell has that, too: then the recording process
finds it complete as well.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from flambeau.core.errors import DriverError
from flambeau.core.host_arrays import address_of
from flambeau.core.ipc.shared_memory import Door, anonymous, map_private, map_shared
from flambeau.driver.virtual.memory.arena import Arena

NBYTES = 64
_MEMORY, _EVENT = b"FBmem\0\0\1", b"FBevt\0\0\1"
# kind, address of the owner's socket, the device's UUID, offset, bytes
_HANDLE = struct.Struct("<8s24s16sQQ")
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 24
_PAGEMAP = 8  # bytes of /proc/self/pagemap per page
_IN_SWAP = np.uint64(1 << 62)  # the bit of a swapped page; the one above it means that the page is in memory
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE

_libc = ctypes.CDLL(None)


class SharedPages:
    """The memory that one device shares with other processes. Created at the first export or import."""

    def __init__(self, arena: Arena, uuid: bytes) -> None:
        self._arena = arena
        self.uuid = uuid
        self._at = address_of(arena.bytes)
        self._fd = -1  # file of the exported pages
        self._moved = np.zeros(-(-len(arena.bytes) // _PAGE), bool)  # pages that were moved to the file
        self._opened: dict[int, tuple[int, int]] = {}  # address -> the range that it was mapped over

    # -- ours, for others -----------------------------------------------------------------------------
    def export(self, ptr: int) -> bytes:
        """Return an IPC handle of the segment at an address. See Note [Exported memory]."""
        arena = self._arena
        end = arena.ends.get(ptr)
        if end is None or ptr in self._opened or ptr >= arena.limit:  # an expandable segment
            raise arena.invalid("ipc_memory", ptr, 0, "is not the start of an allocation of this process")
        if self._fd < 0:
            self._fd = anonymous(-(-len(arena.bytes) // _PAGE) * _PAGE)
        door = Door.of(self._fd)
        if arena.poison:
            arena.touch(ptr, end - ptr)
        start, stop = ptr - arena.base, end - arena.base
        pages = slice(start // _PAGE, -(-stop // _PAGE))
        if not self._moved[pages].all():
            for first, last in _unset(self._moved, pages.start, pages.stop):
                self._move(first * _PAGE, min(last * _PAGE, len(arena.bytes)))
                self._moved[first:last] = True
        return _HANDLE.pack(_MEMORY, door.pack(), self.uuid, start, stop - start)

    def _move(self, start: int, stop: int) -> None:
        """Move pages to the file; pages that were never written stay uncommitted."""
        page = start // _PAGE
        for first, last in _unset(
            ~_committed_pages(self._at + start, stop - start), 0, -(-(stop - start) // _PAGE)
        ):
            self._copy((page + first) * _PAGE, min((page + last) * _PAGE, stop))
        map_shared(self._fd, stop - start, start, over=self._at + start)

    def _copy(self, start: int, stop: int) -> None:
        for at in range(start, stop, _PIECE):
            os.pwrite(self._fd, self._arena.bytes[at : min(at + _PIECE, stop)].data, at)

    def on_segment_freed(self, ptr: int, end: int) -> None:
        """Discard the contents of a freed segment's shared pages."""
        first, last = -(-(ptr - self._arena.base) // _PAGE) * _PAGE, (end - self._arena.base) // _PAGE * _PAGE
        if self._fd >= 0 and last > first:
            _libc.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_int64(first), ctypes.c_int64(last - first))

    # -- others', for us ------------------------------------------------------------------------------
    def open(self, handle: bytes) -> tuple[int, int]:
        """Map a segment of another process. Return its address here and its size in bytes."""
        door, start, nbytes = _parse_handle(handle, _MEMORY, self.uuid)
        if door.pid == os.getpid():
            raise DriverError("CUDA error: invalid device context: the memory is this process's own")
        fd = _enter(door)
        try:
            return self._open(fd, start, nbytes), nbytes
        finally:
            os.close(fd)

    def _open(self, fd: int, start: int, nbytes: int) -> int:
        arena = self._arena
        first = start // _PAGE * _PAGE
        length = -(-(start + nbytes) // _PAGE) * _PAGE - first
        whole = arena.allocate(length + _PAGE)  # the start need not be page-aligned
        end = arena.ends[whole]
        arena.occupy(whole, end - whole)
        at = -(-(whole - arena.base) // _PAGE) * _PAGE
        try:
            map_shared(fd, length, first, over=self._at + at)
        except OSError as error:
            arena.release(whole)
            raise DriverError(f"CUDA error: mapping of buffer object failed: {error}") from None
        self._moved[at // _PAGE : (at + length) // _PAGE] = False
        ptr = arena.base + at + start - first
        arena.rename(whole, ptr, ptr + nbytes)
        self._opened[ptr] = (whole, end)
        return ptr

    def owns(self, ptr: int) -> bool:
        """Return True if `open` returned the address."""
        return ptr in self._opened

    def close(self, ptr: int) -> None:
        """Unmap what `open` mapped."""
        whole, end = self._opened[ptr]
        arena = self._arena
        first, last = -(-(whole - arena.base) // _PAGE) * _PAGE, (end - arena.base) // _PAGE * _PAGE
        map_private(last - first, over=self._at + first)
        del self._opened[ptr]
        arena.rename(ptr, whole, end)
        arena.release(whole)

    def shut(self) -> None:
        """End all exports, because the machine closes. Processes that have mapped them keep their mapping."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def event_handle(door: Door, uuid: bytes, number: int) -> bytes:
    """Return the IPC handle of the event with cell `number`; see Note [Events of other processes]."""
    return _HANDLE.pack(_EVENT, door.pack(), uuid, number, 0)


def parse_event(handle: bytes, uuid: bytes) -> tuple[Door, int]:
    """Return the `Door` and number of an event's cell.

    Raises:
        DriverError: Unless the handle is of an event of this device.
    """
    door, number, _ = _parse_handle(handle, _EVENT, uuid)
    return door, number


def _parse_handle(handle: bytes, kind: bytes, uuid: bytes) -> tuple[Door, int, int]:
    if len(handle) != NBYTES:
        raise DriverError(
            f"CUDA error: invalid argument: an IPC handle has {NBYTES} bytes, not {len(handle)}"
        )
    what, door, device, start, nbytes = _HANDLE.unpack(handle)
    if what != kind:
        raise DriverError(
            "CUDA error: invalid argument: this is no IPC handle of virtual GPUs, or of another thing"
        )
    if device != uuid:
        raise DriverError("CUDA error: invalid resource handle: it is of another device than it is opened on")
    return Door.unpack(door), start, nbytes


def _enter(door: Door) -> int:
    try:
        return door.enter()
    except ProcessLookupError as error:
        raise DriverError(f"CUDA error: invalid resource handle: {error}") from None


def _committed_pages(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Return an array that is True for pages with contents, and for all pages if the system does not report it."""
    count = -(-nbytes // _PAGE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(address // _PAGE * _PAGEMAP)
            entries = np.frombuffer(file.read(count * _PAGEMAP), np.uint64)
    except OSError:
        entries = np.empty(0, np.uint64)
    if len(entries) != count:
        return np.ones(count, bool)
    return entries >= _IN_SWAP


def _unset(flags: np.ndarray[Any, Any], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of consecutive False values in a part of an array."""
    edges = np.flatnonzero(np.diff(flags[first:last], prepend=True, append=True))
    for start, stop in edges.reshape(-1, 2).tolist():
        yield first + start, first + stop
