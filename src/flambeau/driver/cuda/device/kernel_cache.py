"""Compiled kernels on disk: one file per (source, options, architecture, compiler), safe for many processes."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from flambeau.core.files import replace_file

LIMIT = 1 << 30  # bytes; the least recently used files are removed first
_CHECKED_EVERY = 64
_DIGEST = 16  # bytes of the hash in front of a cubin


class DiskCache:
    """A folder of cubins by key. Writes are atomic; a write that fails is skipped, so the kernel is compiled again next
    time.

    A file with wrong contents, for example after a power failure, is ignored.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder = folder
        self._limit = limit
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        path = self._folder / f"{key}.cubin"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(path)  # marks the file as recently used
        digest, cubin = data[:_DIGEST], data[_DIGEST:]
        return cubin if digest == _digest(cubin) else None

    def put(self, key: str, data: bytes) -> None:
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            # the write is not synchronized to disk: the hash detects files damaged by a power failure
            replace_file(self._folder / f"{key}.cubin", _digest(data) + data, durable=False)
        if self._puts % _CHECKED_EVERY == 0:
            self._shrink()
        self._puts += 1

    def _shrink(self) -> None:
        """Remove the files longest unused until a quarter of the limit is free."""
        files = []
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                with suppress(OSError):
                    files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= self._limit:
            return
        for _, size, path in sorted(files):
            if total <= self._limit * 3 // 4:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size


def _digest(cubin: bytes) -> bytes:
    return hashlib.sha256(cubin).digest()[:_DIGEST]
