"""`FileStore`: a store in a file that all ranks reach, on one machine or on a shared file system.

The file is a log of changes. Each operation locks the file, replays what others have appended, and appends its own.
A writer that was killed may leave a part of a change at the end. Readers ignore it, and the next change replaces it.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import RawIOBase
from typing import Any, NoReturn

from flambeau.core.files import naming
from flambeau.core.host.long_waits import LongWait
from flambeau.core.ipc.codec import Inbox, frame_message
from flambeau.distributed.stores.kv_store import CHANGES, Table
from flambeau.distributed.stores.store import (
    DEFAULT_TIMEOUT,
    Inner,
    PartOfWait,
    Store,
    describe_unset,
    describe_wait,
    milliseconds,
    seconds,
)

_USERS, _ENDED = "refcount/", "cleanup/"
_QUEUES = frozenset(("push", "pop", "length"))
_PAUSE = 0.01  # seconds between two looks at the file
_SHORT_S = 10.0  # a wait that ends within this many seconds is not given up
_LARGEST = 1 << 40


class FileStore(Inner, Store):
    """A store in the file `file_name`, which is created if it does not exist.

    With a `world_size` of 0 or more, the last of that many stores deletes the file when it is closed. There are no
    queues.

    Raises:
        OSError: If the file cannot be created.
    """

    __module__ = "flambeau.distributed"

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        self.watch: Any = None  # the `FileWatch` of this rank, if the store is that of its process group
        self._timeout = DEFAULT_TIMEOUT
        self._world_size = world_size
        self._log = _Log(file_name)
        if world_size >= 0:
            self._log.do("add", [_USERS, 1])
            weakref.finalize(self, _leave, self._log, world_size, os.getpid())

    @property
    def path(self) -> str:
        """Return the file."""
        return self._log.path

    def clone(self) -> FileStore:
        twin = FileStore(self.path, self._world_size)
        twin._timeout = self._timeout
        return twin

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'FileStore' object: another process makes its own, with the path")

    def has_extended_api(self) -> bool:
        return False

    def _do(self, operation: str, args: list[Any], needs: Sequence[str], limit: timedelta) -> Any:
        if operation in _QUEUES:
            raise NotImplementedError("queue support is not implemented.")
        if needs:
            self._wait(operation, needs, limit)
        return self._log.do(operation, args)

    def _wait(self, operation: str, needs: Sequence[str], limit: timedelta) -> None:
        timeout = seconds(limit)
        deadline = None if timeout is None else time.monotonic() + timeout
        is_short = isinstance(limit, PartOfWait) or (timeout is not None and timeout < _SHORT_S)
        watched = None if self.watch is None or is_short else self.watch.begin(needs)
        long_wait = LongWait(lambda: describe_wait(needs))
        try:
            while not self._log.ready(operation, needs):
                if deadline is not None and time.monotonic() >= deadline:
                    _late(operation, needs, limit)
                if watched is None:
                    long_wait.report()
                else:
                    watched.look()
                time.sleep(_PAUSE)
        finally:
            if watched is not None:
                watched.end()


def _late(operation: str, needs: Sequence[str], limit: timedelta) -> NoReturn:
    late = f"after {milliseconds(limit)} ms"
    if operation == "check":
        raise RuntimeError(f"Wait timeout: {describe_unset(needs)} {late}")
    raise RuntimeError(f"Timeout waiting for key: {', '.join(key[1:] for key in needs)} {late}")


def _leave(log: _Log, world_size: int, process: int) -> None:
    if os.getpid() != process:  # a forked child: the store is its parent's
        return
    with suppress(OSError):
        ended = log.do("add", [_ENDED, 1])
        if log.do("add", [_USERS, -1]) == 0 and ended >= world_size:
            os.remove(log.path)


class _Log:
    """The log file of a store, and the table of changes that were read from it."""

    def __init__(self, path: str) -> None:
        self.path = os.fspath(path)
        self._forget()
        with self._lock():
            pass

    def _forget(self) -> None:
        """Make the next operation read the file from its beginning."""
        self._table = Table()
        self._inbox = Inbox(_LARGEST)
        self._read = 0

    def do(self, operation: str, args: Sequence[Any]) -> Any:
        """Run an operation on the table, and append its changes to the file."""
        with self._lock() as append:
            answer = self._table.do(operation, args)
            if operation in CHANGES:
                append(frame_message([operation, list(args)]))
            return answer

    def ready(self, operation: str, needs: Sequence[str]) -> bool:
        with self._lock():
            return self._table.ready(operation, needs)

    @contextmanager
    def _lock(self) -> Iterator[Callable[[bytes], None]]:
        """Lock the file inside the block, with the table up to date."""
        with open(self.path, "ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            file.seek(self._read)
            news = file.read()
            for operation, args in self._inbox.feed(news):
                self._table.do(operation, args)
            partial = self._inbox.drop_partial()
            self._read += len(news) - partial

            def append(message: bytes) -> None:
                try:
                    with naming(self.path, "the store is as before"):
                        if partial:
                            file.truncate(self._read)
                        _write_all(file, message)
                except OSError:
                    end = self._read
                    self._forget()
                    file.truncate(end)  # a partial record would be read as the beginning of the next
                    raise
                self._read += len(message)

            yield append


def _write_all(file: RawIOBase, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]
