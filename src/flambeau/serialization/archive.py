"""The container of a checkpoint: a zip file of uncompressed records, each beginning at a multiple of 64 bytes."""

from __future__ import annotations

import errno
import io
import mmap
import os
import struct
import zipfile
import zlib
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from flambeau.core.brief import brief_text

ALIGNMENT = 64
SIGNATURE = b"PK\x03\x04"
_LOCAL = struct.Struct("<26xHH")  # of a local header: the lengths of the name and of the extra field
_PADDING = 0x4246  # the extra field's tag that PyTorch's own writer uses
_LARGE = 1 << 30  # from here on sizes are written as 64 bits
_SIZES = 20  # bytes of the extra field that holds them
_CHUNK = 1 << 20
_UNPACKED, _RATIO = 1 << 24, 64  # records unpack to at most so many bytes, and so many times the file
_READ = 1 << 20  # records that are not storages: and so many times their own packed size

Array = np.ndarray[Any, Any]


class _WholeWrites:
    """A file object whose `write` continues after a partial write, and may have no return value.

    Unbuffered files write fewer bytes than they get when the disk is nearly full; `zipfile` ignores the count.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        """Write all of the data.

        Raises:
            BlockingIOError: If an unbuffered file writes nothing.
        """
        left = memoryview(data).cast("B")
        while left.nbytes:
            count = self._file.write(left)
            if not count and isinstance(self._file, io.RawIOBase):
                raise BlockingIOError(
                    errno.EAGAIN, f"the file takes no more bytes; {left.nbytes} are not written"
                )
            if type(count) is not int or not 0 < count < left.nbytes:
                break
            left = left[count:]
        return len(data)


class ArchiveWriter(AbstractContextManager["ArchiveWriter"]):
    """A writer of the records of archive `name`; it writes the directory at the end of the `with` block."""

    def __init__(self, file: Any, name: str) -> None:
        self._zip = zipfile.ZipFile(_WholeWrites(file), "w", zipfile.ZIP_STORED, allowZip64=True)
        self._name = name

    def write(self, record: str, data: Any) -> None:
        """Write one record: bytes, or a buffer."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        info = zipfile.ZipInfo(f"{self._name}/{record}")
        large = view.nbytes > _LARGE
        info.extra = self._padding(info, large)
        with self._zip.open(info, "w", force_zip64=large) as out:
            for at in range(0, view.nbytes, _CHUNK):
                out.write(view[at : at + _CHUNK])

    def __exit__(self, kind: Any, *error: object) -> None:
        with suppress(*(() if kind is None else (Exception,))):
            self._zip.close()

    def _padding(self, info: zipfile.ZipInfo, large: bool) -> bytes:
        """Return an extra field that ends where the record shall begin."""
        header = _LOCAL.size + len(info.filename.encode()) + (_SIZES if large else 0)
        n = -(self._zip.fp.tell() + header + 4) % ALIGNMENT  # type: ignore[union-attr]
        return struct.pack("<HH", _PADDING, n) + b"Z" * n


class Damaged(RuntimeError):
    """The error raised if a checkpoint is damaged.

    Attributes:
        at: The byte of the file at which the damage was found; None if it concerns the whole file.
    """

    def __init__(self, text: str, at: int | None) -> None:
        super().__init__(text)
        self.at = at


class ArchiveReader:
    """A reader of the records of an archive.

    Args:
        file: A seekable binary file object.
        path: The path of the file, if records are to be mapped and not read.

    Raises:
        RuntimeError: If this is not an archive, or its records would unpack to much more than the file has.
    """

    def __init__(self, file: Any, path: str | None = None) -> None:
        self._file = file
        self._nbytes = size_of(file)
        try:
            self._zip = zipfile.ZipFile(file)
        except Exception as error:  # zipfile raises exceptions of many types for damaged data
            raise Damaged(
                f"PytorchStreamReader failed reading zip archive: {brief_text(str(error))}. If you are seeing this "
                "error, there is a high likelihood that your checkpoint file is corrupted. This can happen if the "
                "checkpoint was not saved properly, was transferred incorrectly, or the file was modified after "
                "saving.",
                None,
            ) from None
        self._check_sizes()
        first = next(iter(self._zip.namelist()), "")
        self._name = first.partition("/")[0]
        self._map = None if path is None else _map_file(path)

    def _check_sizes(self) -> None:
        """Raise Damaged if records overlap in the file, or unpack to far more memory than the size of the file."""
        infos = self._zip.infolist()
        packed, unpacked = sum(info.compress_size for info in infos), sum(info.file_size for info in infos)
        if packed > self._nbytes:
            raise Damaged(f"its records have {packed} bytes, and the file {self._nbytes}: they overlap", None)
        if unpacked > _UNPACKED + _RATIO * self._nbytes:
            raise Damaged(
                f"its records unpack to {unpacked} bytes, more than {_RATIO} times the {self._nbytes} bytes of the "
                "file. Fix: unzip it, and zip it again without compression",
                None,
            )

    @property
    def nbytes(self) -> int:
        """Return size of all records, unpacked."""
        return sum(info.file_size for info in self._zip.infolist())

    def has(self, record: str) -> bool:
        return f"{self._name}/{record}" in self._zip.NameToInfo

    def size(self, record: str) -> int:
        """Return the number of bytes of a record."""
        return self._info(record).file_size

    def place(self, record: str) -> int:
        """Return the position of a record in the file."""
        return self._info(record).header_offset

    def read(self, record: str) -> bytes:
        """Return a record that is not a storage.

        Raises:
            RuntimeError: If it is missing or damaged, or unpacks to much more than it explains: reading a pickle
                takes some 70 bytes of memory for each byte.
        """
        info = self._info(record)
        if info.file_size > _READ + _RATIO * info.compress_size:
            raise _unreadable(
                record,
                info,
                f"its {info.compress_size} bytes unpack to {info.file_size}, more than {_RATIO} times",
            )
        array = np.empty(info.file_size, np.uint8)
        self.read_into(record, array)
        return array.tobytes()

    def read_into(self, record: str, target: Array) -> None:
        """Read a record into an array of bytes of its size. Its checksum is verified."""
        info = self._info(record)
        buffer: Any = target if target.size else bytearray()
        try:
            if info.compress_type == zipfile.ZIP_STORED:
                self._read_stored(info, memoryview(buffer))
            elif info.compress_type == zipfile.ZIP_DEFLATED:
                with self._zip.open(info) as packed:
                    _fill(packed, memoryview(buffer), _CHUNK)
                    if packed.read(1):  # verifies the checksum
                        raise zipfile.BadZipFile("it is longer than the archive says")
            else:
                raise zipfile.BadZipFile(f"it is compressed by method {info.compress_type}")
        except (Damaged, MemoryError):
            raise
        except Exception as error:  # zipfile and its codecs raise exceptions of many types for damaged data
            raise _unreadable(record, info, str(error)) from None

    def map_record(self, record: str) -> Array | None:
        """Return a record's bytes in the file, mapped copy-on-write; None if the file is not mapped."""
        if self._map is None:
            return None
        info = self._info(record)
        if info.compress_type != zipfile.ZIP_STORED:
            raise _unreadable(record, info, "it is compressed, so it cannot be mapped")
        begin = self._begin(info)
        if begin + info.file_size > len(self._map):
            raise _unreadable(record, info, "it reaches beyond the end of the file")
        return np.frombuffer(self._map, np.uint8, info.file_size, begin)

    def _read_stored(self, info: zipfile.ZipInfo, target: memoryview) -> None:
        """Read an uncompressed record into `target` in parts. Each part's checksum is computed while it is cached."""
        self._file.seek(self._begin(info))
        checksum = 0
        for at in range(0, target.nbytes, _CHUNK):
            part = target[at : at + _CHUNK]
            _fill(self._file, part)
            checksum = zlib.crc32(part, checksum)
        if checksum != info.CRC:
            raise zipfile.BadZipFile("bad checksum")

    def _begin(self, info: zipfile.ZipInfo) -> int:
        """Return the offset in the file at which a record's bytes begin."""
        if not 0 <= info.header_offset < self._nbytes:
            raise _unreadable(info.filename, info, "its header is missing")
        self._file.seek(info.header_offset)
        header = self._file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or header[:4] != SIGNATURE:
            raise _unreadable(info.filename, info, "its header is missing")
        return info.header_offset + _LOCAL.size + sum(_LOCAL.unpack(header))

    def _info(self, record: str) -> zipfile.ZipInfo:
        try:
            info = self._zip.getinfo(f"{self._name}/{record}")
        except KeyError:
            text = f"PytorchStreamReader failed locating file {brief_text(record)}: file not found"
            raise Damaged(text, None) from None
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise _unreadable(record, info, "it has two sizes")
        return info


def _fill(file: Any, target: memoryview, most: int | None = None) -> None:
    """Fill a buffer from the file, by reads of limited size.

    Raises:
        EOFError: If the file ends before.
    """
    read_into = getattr(file, "readinto", None)
    while target.nbytes:
        part = target[:most]
        if read_into is None:
            data = file.read(part.nbytes)
            n = len(data)
            part[:n] = data
        else:
            n = read_into(part)
        if not n:
            raise EOFError("the file ends early")
        target = target[n:]


def size_of(file: Any) -> int:
    """Return the size of a file. Its position does not change."""
    at = file.tell()
    file.seek(0, os.SEEK_END)
    size: int = file.tell()
    file.seek(at)
    return size


def is_archive(file: Any) -> bool:
    """Return True if a zip archive begins at the file's position, which does not change."""
    at = file.tell()
    signature = file.read(4)
    file.seek(at)
    return bool(signature == SIGNATURE)


def _map_file(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _unreadable(record: str, info: zipfile.ZipInfo, why: str) -> Damaged:
    return Damaged(
        f"PytorchStreamReader failed reading file {brief_text(record)}: file read failed ({brief_text(why)})",
        info.header_offset,
    )
