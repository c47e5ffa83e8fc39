"""`Named`: memory that other processes map by its name. The last of them frees it.

# Note [Named memory]
The name belongs to all who use it: the first bytes count them, one for each mapping and one for each message underway.
Who drops the last one removes the name. A process that is killed drops none; then the standard library's resource
tracker removes the name when the last process of the program has ended. (It belongs to the program's first process
and is handed down to its children; where a process of another program drops the last count, the name is left to it.)
A fork's copy of the object maps the same memory and counts for nothing.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import errno
import fcntl
import os
import secrets
import struct
import sys
from multiprocessing import resource_tracker, util
from typing import Any
from weakref import WeakSet

from flambeau.core.ipc.shared_memory import Mapping

_HEADER = 64  # bytes before the data: keeps it aligned
_COUNT = struct.Struct("<qQ")  # users, the tracker


class Named(Mapping):
    """Shared memory of `nbytes` bytes at `ptr` under `name`, which is `key` too. Each object counts as one user of the
    memory.
    """

    __slots__ = ("_base", "_holder", "key", "name")

    def __init__(self, name: str, fd: int, nbytes: int) -> None:
        self._holder = 0
        super().__init__(fd, _HEADER + nbytes)
        self.name = self.key = name
        self._base = self.ptr
        self.ptr += _HEADER
        self._holder = os.getpid()
        _alive.add(self)

    @classmethod
    def create(cls, nbytes: int) -> Named:
        """Return new memory under a new name.

        Raises:
            OSError: If there is no room.
        """
        name = f"/flambeau_{os.getpid()}_{secrets.token_hex(6)}"
        fd = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
        try:
            resource_tracker.register(name, "shared_memory")
            _allocate(fd, _HEADER + nbytes)
            os.pwrite(fd, _COUNT.pack(1, _tracker()), 0)
            return cls(name, fd, nbytes)
        except BaseException:
            _remove(name)
            raise
        finally:
            os.close(fd)

    @classmethod
    def take(cls, name: str, nbytes: int) -> Named:
        """Map memory that another process has sent, and take over the count that the message held.

        Raises:
            FileNotFoundError: If no process has it any more.
        """
        fd = _posixshmem.shm_open(name, os.O_RDWR, mode=0o600)
        try:
            return cls(name, fd, nbytes)
        finally:
            os.close(fd)

    def hold(self) -> None:
        """Count a message that was sent and has not arrived.

        Raises:
            FileNotFoundError: If no process counts it any more; forked copies do not count.
        """
        change(self.name, 1)

    def release(self) -> None:
        """Decrement the count of users. The mapping stays."""
        if self._holder == os.getpid():
            self._holder = 0
            change(self.name, -1)

    def __del__(self, ending: Any = sys.is_finalizing) -> None:
        if not ending():  # at exit everything has been released, and this module may have been cleared
            self.release()
        if self.nbytes:
            self._unmap(self._base, self.nbytes)


def change(name: str, by: int) -> None:
    """Add to the count of a name's users; the last removes it."""
    try:
        fd = _posixshmem.shm_open(name, os.O_RDWR, mode=0o600)
    except FileNotFoundError:
        if by > 0:
            raise
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        users, tracker = _COUNT.unpack(os.pread(fd, _COUNT.size, 0))
        os.pwrite(fd, _COUNT.pack(users + by, tracker), 0)
        if users + by <= 0 and tracker == _tracker():
            _remove(name)
    finally:
        os.close(fd)


def _remove(name: str) -> None:
    _posixshmem.shm_unlink(name)
    resource_tracker.unregister(name, "shared_memory")


def _allocate(fd: int, nbytes: int) -> None:
    """Allocate all pages now. If memory ran out later, a signal would end the program."""
    os.ftruncate(fd, nbytes)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise


def _tracker() -> int:
    """Return a value that identifies this program's resource tracker: the pipe to it."""
    fd = resource_tracker._resource_tracker.getfd()
    assert fd is not None
    return os.fstat(fd).st_ino


_alive: WeakSet[Named] = WeakSet()


def release_all() -> None:
    """Release all named memory at the end of the process, which may skip destructors."""
    for named in list(_alive):
        named.release()


def _at_the_end(_: object) -> None:
    util.Finalize(None, release_all, exitpriority=-1000)  # after queues have sent their contents


_at_the_end(None)
util.register_after_fork(Named, _at_the_end)
