"""Memory that several processes map: anonymous, reached through a descriptor, or by a name.

# Note [How processes reach each other's memory]
Anonymous memory belongs to nobody and needs no cleaning up: the system frees it with its last mapping, whoever was
killed when. Another process gets at it by a descriptor that is sent, or, where nothing can be sent (an IPC handle is
64 bytes), through its owner's entry in /proc: a `Door` names it, and says by inode whether it still is what it was.
So a door leads somewhere only while its owner lives, which is CUDA's own rule for IPC handles.
Named memory is there for as long as its name is: whoever makes it registers the name with the standard library's
resource tracker, a process that outlives the program's others and removes what they left.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from dataclasses import dataclass

import numpy as np

from flambeau.core.errors import NotSupportedError
from flambeau.core.memory import address_of

_DOOR = struct.Struct("<iiQQ")


def anonymous(nbytes: int) -> int:
    """A descriptor of new anonymous memory that reads as zeros. OSError: there is no room."""
    fd = _unnamed()
    try:
        os.ftruncate(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unnamed() -> int:
    if sys.platform == "linux":
        return os.memfd_create("flambeau", os.MFD_CLOEXEC)
    import tempfile  # takes time, and Linux needs none

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Mapping:
    """All of a descriptor's memory, at `ptr`, shared with who else maps it; given back with this object."""

    __slots__ = ("_bytes", "nbytes", "ptr")

    def __init__(self, fd: int, nbytes: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        self.nbytes = nbytes
        self.ptr = address_of(self._bytes)


@dataclass(frozen=True, slots=True)
class Door:
    """Where another process finds a descriptor of this one: see the note above."""

    pid: int
    fd: int
    device: int
    inode: int

    @classmethod
    def of(cls, fd: int) -> Door:
        """The door to a descriptor of this process, which must stay open."""
        if sys.platform != "linux":
            raise NotSupportedError(
                "memory of devices is shared between processes on Linux only, as with CUDA"
            )
        found = os.fstat(fd)
        return cls(os.getpid(), fd, found.st_dev, found.st_ino)

    def enter(self) -> int:
        """A descriptor of our own. ProcessLookupError: its owner has ended, or has closed it."""
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ProcessLookupError(self._gone()) from None
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            os.close(fd)
            raise ProcessLookupError(self._gone())
        return fd

    def _gone(self) -> str:
        return f"process {self.pid} has ended, or has given the memory back that it shared"

    def pack(self) -> bytes:
        return _DOOR.pack(self.pid, self.fd, self.device, self.inode)

    @classmethod
    def unpack(cls, data: bytes) -> Door:
        """Of what `pack` gave. ValueError: it is none."""
        try:
            return cls(*_DOOR.unpack(data))
        except struct.error:
            raise ValueError(f"{data!r} is no door") from None


def birth(pid: int) -> int:
    """When a process began, in ticks since the system did: with its id, which is used again, its name. 0: it ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
