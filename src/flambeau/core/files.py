"""Files that are replaced as a whole or not at all.

# Note [Whole files]
Problem: a full disk, or a signal, during a write leaves half of a new file, and nothing of the old one.
Rule: every file that Flambeau writes for a program goes through `replacing`, or `replace_file` with all its contents.
The new file is written next to the old one, without a name if the system has unnamed files (on Linux even SIGKILL then
leaves nothing behind). It is flushed to disk and takes the name of the old one in one step. A temporary name depends on
the target, and its writer locks the file: the next writer of the target removes what a killed one has left.
Consequences: the folder must be writable; other hard links keep the old contents. A path that is not a regular file
(a pipe, /dev/stdout) cannot be replaced and is written to directly.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO, TypeVar

_Result = TypeVar("_Result")
_UNNAMED: int = getattr(os, "O_TMPFILE", 0)
_OPEN_FILES = "/proc/self/fd"  # links an unnamed file to a name
_ADVICE = (
    ". A file is replaced by one that is written next to it. Fix: make its folder writable, or pass an open file, "
    "which is written into"
)
_NAMES = 16  # temporary names of one target, before random ones
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of writes, which name no file


def replace_file(path: str | os.PathLike[str], data: bytes | str, durable: bool = True) -> None:
    """Write a whole file, text as UTF-8. See `replacing`."""
    with replacing(path, durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def replacing(path: str | os.PathLike[str], durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces the one at `path` when the block ends; if the block raises, nothing changes.

    Permissions are kept. If the path is a symbolic link, its target is replaced.

    Args:
        path: The path of the file.
        durable: Wait until the file is on disk, so that it survives a loss of power.

    Raises:
        OSError: If the folder or the old file is not writable, or the disk is full. The error names the file.
    """
    before = _status(path)
    if not _is_replaceable(path, before):
        with naming(path, "what was written is incomplete"), open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    try:
        folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    outcome = "no file was written" if before is None else "the old file is kept"
    try:
        with naming(path, outcome):
            beside = _Beside(folder, os.path.basename(target))
            try:
                yield beside.file
                beside.finish(before, durable)
            finally:
                beside.discard()
    finally:
        os.close(folder)


@contextmanager
def naming(path: str | os.PathLike[str], outcome: str) -> Iterator[None]:
    """Add the file's name, and its state after the failure, to errors of a full or broken disk.

    Args:
        path: The file.
        outcome: The state of the file, such as "the old file is kept".

    Raises:
        OSError: If the block raises one; with the same number.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS or error.filename is not None:
            raise
        raise OSError(error.errno, f"{error.strerror}; {outcome}", os.fspath(path)) from None


class _Beside:
    """A new file in the folder of the file that it will replace.

    Attributes:
        file: The open file.
        name: Its name in the folder; None as long as it has none.
    """

    def __init__(self, folder: int, target: str) -> None:
        self._folder, self._target = folder, target
        self.name: str | None = None
        fd = _open_unnamed(folder)
        self.file = os.fdopen(self._open_named() if fd is None else fd, "w+b")

    def _open_named(self) -> int:
        try:
            self.name, fd = _take_name(self._folder, self._target, partial(_open_named, self._folder))
        except OSError as error:
            if error.errno in _DISK_ERRORS:
                raise OSError(error.errno, error.strerror) from None
            raise OSError(error.errno, f"{error.strerror}{_ADVICE}", self._target) from None
        return fd

    def finish(self, before: os.stat_result | None, durable: bool) -> None:
        """Replace the old file by the new one."""
        self.file.flush()
        fd = self.file.fileno()
        if before is not None:
            _keep_permissions(fd, before)
        if durable:
            os.fsync(fd)
        if self.name is None:
            link = partial(os.link, f"{_OPEN_FILES}/{fd}", dst_dir_fd=self._folder)
            self.name, _ = _take_name(self._folder, self._target, link)
        os.replace(self.name, self._target, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self.name = None
        if durable:
            with suppress(OSError):  # some file systems do not sync folders
                os.fsync(self._folder)

    def discard(self) -> None:
        """Close the file, and remove it unless it has replaced the old one."""
        with suppress(OSError):  # an earlier call has already raised for a full disk
            self.file.close()
        if self.name is not None:
            with suppress(OSError):
                os.unlink(self.name, dir_fd=self._folder)


def _open_unnamed(folder: int) -> int | None:
    """Open a new file without a name; None where the system or the file system has none."""
    if not _UNNAMED or not os.path.isdir(_OPEN_FILES):
        return None
    try:
        fd = os.open(".", os.O_RDWR | _UNNAMED, 0o666, dir_fd=folder)
    except OSError:  # for other reasons, writing a named file fails similarly and reports the reason
        return None
    _lock(fd)
    return fd


def _open_named(folder: int, name: str) -> int:
    """Open a new file under a name, and lock it. Raises FileExistsError if another process uses the name."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    _lock(fd)
    if not os.fstat(fd).st_nlink:  # another writer took it for an abandoned one
        os.close(fd)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    return fd


def _take_name(folder: int, target: str, make: Callable[[str], _Result]) -> tuple[str, _Result]:
    """Make a file under the first temporary name of a target that no running process uses.

    Returns:
        The name and the result of `make(name)`, which raises FileExistsError if there is a file.
    """
    owner = f"{os.uname().nodename}/".encode()  # locks of other hosts may be unknown here
    stem = f".flambeau-{zlib.crc32(owner + os.fsencode(target)):08x}"
    number = 0
    while True:
        name = f"{stem}-{number if number < _NAMES else os.urandom(6).hex()}.tmp"
        try:
            return name, make(name)
        except FileExistsError:
            number += not _remove_abandoned(folder, name)


def _remove_abandoned(folder: int, name: str) -> bool:
    """Remove a file whose writer was killed. Returns False if it is in use, or is not ours to remove."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        return error.errno == errno.ENOENT
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False)):
            os.unlink(name, dir_fd=folder)
    except OSError as error:
        return error.errno == errno.ENOENT
    finally:
        os.close(fd)
    return True


def _lock(fd: int) -> None:
    """Mark a file as in use until it is closed, or its process has ended."""
    with suppress(OSError):  # a file system without locks; there files of killed writers stay
        fcntl.flock(fd, fcntl.LOCK_EX)


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_replaceable(path: str | os.PathLike[str], status: os.stat_result | None) -> bool:
    """Return False for a path that a new file cannot replace: a pipe, a device, or a name below /dev or /proc."""
    if status is not None and not stat.S_ISREG(status.st_mode):
        return False
    path = os.fsdecode(path)
    return bool(os.path.basename(path)) and not os.path.abspath(path).startswith(("/dev/", "/proc/"))


def _keep_permissions(fd: int, before: os.stat_result) -> None:
    now = os.fstat(fd)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with suppress(OSError):  # only root may change the owner
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
