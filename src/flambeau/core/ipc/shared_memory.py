"""Memory that several processes map.

# Note [How processes reach each other's memory]
Anonymous memory has no owner and needs no cleaning up: the system frees it with its last mapping, even if processes
were killed. Another process maps it by a descriptor that is sent, or, where nothing can be sent (an IPC handle is
64 bytes), through its owner's entry in /proc: a `Door` names it, and says by inode whether it still is what it was.
So a door leads somewhere only while its owner lives, which is CUDA's own rule for IPC handles. Named memory, for
those whose descriptors are few, is in `named_memory.py`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from typing import Any, NamedTuple

from flambeau.core.brief import brief
from flambeau.core.errors import NotSupportedError

_DOOR = struct.Struct("<iiQQ")
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # not in `mmap` before Python 3.13
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
_FIXED = 0x10  # MAP_FIXED, on Linux and on macOS
_FAILED = ctypes.c_void_p(-1).value
# Python's own mmap keeps a descriptor open for each mapping, and maps nothing at a given address.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def anonymous(nbytes: int) -> int:
    """Return a descriptor of new anonymous memory that reads as zeros.

    Raises:
        OSError: If there is no room.
    """
    fd = _create_unnamed()
    try:
        os.ftruncate(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create_unnamed() -> int:
    if sys.platform == "linux":
        return os.memfd_create("flambeau", os.MFD_CLOEXEC)
    import tempfile  # imported here because Linux does not need it

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def map_shared(fd: int, nbytes: int, offset: int = 0, over: int = 0) -> int:
    """Map a descriptor's memory and return its address. `over` replaces the mapping at that address.

    Raises:
        OSError: If there is no room.
    """
    return _map(over, nbytes, mmap.MAP_SHARED, fd, offset)


def map_private(nbytes: int, over: int) -> None:
    """Replace a mapping by new private memory."""
    _map(over, nbytes, _PRIVATE, -1, 0)


def _map(address: int, nbytes: int, flags: int, fd: int, offset: int) -> int:
    found = _libc.mmap(address, nbytes, _PROTECTION, flags | (_FIXED if address else 0), fd, offset)
    if found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {nbytes} bytes of shared memory cannot be mapped")
    return int(found)


class Mapping:
    """A shared mapping of a descriptor's memory at `ptr`, which is unmapped with this object. It keeps `former`
    alive.
    """

    __slots__ = ("__weakref__", "former", "nbytes", "ptr")
    # kept here, because the module may be gone before the last object
    _unmap: Any = staticmethod(_libc.munmap)

    def __init__(self, fd: int, nbytes: int) -> None:
        self.former: object = None
        self.nbytes = 0
        self.ptr = map_shared(fd, nbytes)
        self.nbytes = nbytes

    def __del__(self) -> None:
        if self.nbytes:
            self._unmap(self.ptr, self.nbytes)


class Anonymous(Mapping):
    """Anonymous memory with a file descriptor, `fd`, which is closed with this object. `key` identifies the memory.

    `slots` are the slots of its sendings under way.
    """

    __slots__ = ("fd", "key", "slots")
    _close = staticmethod(os.close)

    def __init__(self, fd: int, nbytes: int) -> None:
        super().__init__(fd, nbytes)
        self.fd = fd
        self.key = key_of(fd)
        self.slots: set[int] = set()

    def __del__(self) -> None:
        super().__del__()
        if self.nbytes:
            self._close(self.fd)


def key_of(fd: int) -> tuple[int, int]:
    """Return a value that identifies a descriptor's memory in every process."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


class Door(NamedTuple):
    """The address of a descriptor for other processes: see Note [How processes reach each other's memory]."""

    pid: int
    fd: int
    device: int
    inode: int

    @classmethod
    def of(cls, fd: int) -> Door:
        """Return the door to a descriptor of this process, which must stay open."""
        if sys.platform != "linux":
            raise NotSupportedError(
                "memory of devices is shared between processes on Linux only, as with CUDA"
            )
        return cls(os.getpid(), fd, *key_of(fd))

    @staticmethod
    def opens() -> bool:
        """Return True if other processes of this user may open the descriptor; False if this process hides its
        memory.
        """
        return sys.platform == "linux" and os.stat("/proc/self").st_uid == os.geteuid()

    def enter(self) -> int:
        """Return this process's descriptor of the memory behind the door.

        Raises:
            ProcessLookupError: If its owner has ended, or has closed it.
        """
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ProcessLookupError(self._describe_missing_owner()) from None
        if key_of(fd) != (self.device, self.inode):
            os.close(fd)
            raise ProcessLookupError(self._describe_missing_owner())
        return fd

    def _describe_missing_owner(self) -> str:
        return f"process {self.pid} has ended, or has given the memory back that it shared"

    def pack(self) -> bytes:
        return _DOOR.pack(self.pid, self.fd, self.device, self.inode)

    @classmethod
    def unpack(cls, data: bytes) -> Door:
        """Return the door that `pack` encoded.

        Raises:
            ValueError: If it is invalid.
        """
        try:
            return cls(*_DOOR.unpack(data))
        except struct.error:
            raise ValueError(f"{brief(data)} is not the address of another process's memory") from None


def birth(pid: int) -> int:
    """Return when a process began, in ticks since the system's start; 0 if it ended. With the id it is unique."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
