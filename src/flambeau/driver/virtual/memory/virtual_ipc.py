"""IPC of virtual GPUs: device memory that several processes map.

# Note [Exported memory]
A device's memory is a private mapping of address space. When a part of it is exported, its pages move to anonymous
shared memory, at the same offset in it as in the device, and are mapped in their old place: addresses and the
arrays over them stay as they are. What else lies on the first and the last page moves with it, which only this
process can tell. The pages stay shared when the part is freed; their contents go.
Whoever opens the handle maps the pages into its own device, over a range that it takes from there: memory that two
processes use is memory that the device has once, so it counts in both.

# Note [Events of other processes]
Each process simulates its own devices, on a clock of its own that starts when they are opened. So an event of another
process has no time here. It is what lets one process see another's writes, and commands run lazily: therefore an
interprocess event runs what it marks as soon as it is recorded. That changes no time, but other streams cannot come
in between any more. Whoever waits for such an event of another process finds it done, or never recorded; either way
the wait is over at once.
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
from flambeau.core.ipc.shared_memory import Door, anonymous, map_private, map_shared
from flambeau.core.memory import address_of
from flambeau.driver.virtual.memory.arena import Arena

NBYTES = 64
_MEMORY, _EVENT = b"FBmem\0\0\1", b"FBevt\0\0\1"
_HANDLE = struct.Struct("<8s24s16sQQ")  # what it is, the owner's door, the device's uuid, offset, bytes
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 24
_PAGEMAP = 8  # bytes of /proc/self/pagemap per page
_IN_SWAP = np.uint64(1 << 62)  # its bit for that; the one above says that the page is in memory
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE

_libc = ctypes.CDLL(None)


class SharedPages:
    """What one device shares with other processes. Made when it first exports or opens something."""

    def __init__(self, arena: Arena, uuid: bytes) -> None:
        self._arena = arena
        self.uuid = uuid
        self._at = address_of(arena.bytes)
        self._fd = -1  # of what is exported
        self._moved = np.zeros(-(-len(arena.bytes) // _PAGE), bool)  # pages that lie in it
        self._opened: dict[int, tuple[int, int]] = {}  # by address: the range that it was mapped over

    # -- ours, for others -----------------------------------------------------------------------------
    def export(self, ptr: int) -> bytes:
        """A handle of the segment at an address. See Note [Exported memory]."""
        arena = self._arena
        end = arena.ends.get(ptr)
        if end is None or ptr in self._opened or ptr >= arena.limit:  # that is of expandable segments
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
        """Pages that were never written stay uncommitted."""
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
        """A segment was freed: the contents of its shared pages go."""
        first, last = -(-(ptr - self._arena.base) // _PAGE) * _PAGE, (end - self._arena.base) // _PAGE * _PAGE
        if self._fd >= 0 and last > first:
            _libc.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_int64(first), ctypes.c_int64(last - first))

    # -- others', for us ------------------------------------------------------------------------------
    def open(self, handle: bytes) -> tuple[int, int]:
        """The address of another process's segment here, and its bytes."""
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
        whole = arena.allocate(length + _PAGE)  # its start need be no page's
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
        """Whether `open` gave the address."""
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
        """The machine closes: nobody can open what it exported any more; who has keeps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def event_handle(index_uuid: bytes, number: int) -> bytes:
    """Of an event. It names its process and device; see Note [Events of other processes]."""
    return _HANDLE.pack(_EVENT, Door(os.getpid(), 0, 0, 0).pack(), index_uuid, number, 0)


def check_event(handle: bytes, uuid: bytes) -> None:
    """Whether it is a handle of an event of this device, made by a process that lives."""
    door, _, _ = _parse_handle(handle, _EVENT, uuid)
    try:
        os.kill(door.pid, 0)
    except PermissionError:
        pass
    except ProcessLookupError:
        raise DriverError(
            f"CUDA error: invalid resource handle: process {door.pid} made it, and has ended"
        ) from None


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
    """Which pages have anything in them; all, where the system does not say."""
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
    """The runs of False in a part of an array."""
    edges = np.flatnonzero(np.diff(flags[first:last], prepend=True, append=True))
    for start, stop in edges.reshape(-1, 2).tolist():
        yield first + start, first + stop
