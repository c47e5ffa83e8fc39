"""PyTorch's older checkpoint format (before 1.6): pickles one after another, then the bytes of the storages."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.brief import brief
from flambeau.core.ipc.pickle_reader import Refused
from flambeau.serialization.archive import Damaged, size_of
from flambeau.serialization.pickle_names import StorageKind
from flambeau.serialization.places import Restore
from flambeau.serialization.reader import (
    PersistentLoad,
    Read,
    Reader,
    empty_storage,
    face_for,
    restore_storage,
    storage_id,
    swap,
)
from flambeau.tensor.exchange.data import over
from flambeau.tensor.exchange.pickling import row_of
from flambeau.tensor.exchange.transfer import write
from flambeau.tensor.storage import Storage

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001


def load_legacy(file: Any, restore: Restore, machine: Reader) -> Any:
    """Read an object; the file then stands behind its last storage. See Note [Storages behind their tensors].

    Raises:
        RuntimeError: If it is no checkpoint, of another version, or damaged.
        UnpicklingError: As `load`.
    """
    read = machine.read
    if not _is_number(read(file, _no_storage), MAGIC):
        raise RuntimeError("Invalid magic number; corrupt file?")
    version = _part(file, read)
    if not _is_number(version, VERSION):
        raise Damaged(f"Invalid protocol version: {brief(version)}", file.tell())
    system = _part(file, read)
    storages = _Storages(restore, size_of(file))
    begin = file.tell()
    _part(file, machine.outline, storages.load)
    keys = _part(file, read)
    if not isinstance(keys, list) or not isinstance(system, dict):
        raise Damaged("the list of storages is missing", file.tell())
    is_little = system.get("little_endian", True)
    if type(is_little) is not bool:
        raise Damaged(f"the byte order is described by {brief(is_little)}", begin)
    storages.fill(file, keys, not is_little)
    end = file.tell()
    file.seek(begin)
    found = _part(file, read, storages.load)
    file.seek(end)
    return found


def _no_storage(pid: Any) -> Any:
    raise Refused(f"only the object itself may name storages, but got {brief(pid)}")


def _is_number(value: Any, number: int) -> bool:
    return type(value) is int and value == number  # a tensor would compare its elements


def _part(file: Any, read: Read, persistent_load: PersistentLoad = _no_storage) -> Any:
    """Read one of the pickles that follow the first one."""
    try:
        return read(file, persistent_load)
    except EOFError:
        raise Damaged("the file ends early", file.tell()) from None


class _Storages:
    """The storages that a pickle names before their bytes. A name after the bytes is refused.

    Args:
        restore: Returns a storage where it belongs.
        nbytes: Size of the file, which has the bytes of all of them.
    """

    def __init__(self, restore: Restore, nbytes: int) -> None:
        self._restore = restore
        self._left = nbytes
        self._found: dict[str, tuple[StorageKind, int, Storage]] = {}
        self._filled = False

    def load(self, pid: Any) -> Any:
        """Return the storage that a persistent id names, where it belongs, without its bytes at first."""
        if type(pid) is tuple and pid and type(pid[0]) is str:
            if pid[0] == "module" and len(pid) > 1:  # a class with its source, which is not compared
                return pid[1]
            if pid[0] == "storage" and len(pid) == 6 and pid[5] is not None:
                raise RuntimeError("the checkpoint has views of storages, which PyTorch 0.3 and older wrote")
        kind, key, location, count = storage_id(pid)
        if key not in self._found:
            if self._filled:
                raise Refused(f"storage {brief(key)} is named in a way that hides it")
            self._left -= count * kind.itemsize
            if self._left < 0:
                raise Damaged(f"storage {brief(key)} has more bytes than the file: {count} elements", None)
            storage = restore_storage(empty_storage(count * kind.itemsize), self._restore, location)
            self._found[key] = kind, count, storage
        return face_for(kind, self._found[key][2])

    def fill(self, file: Any, keys: list[Any], swaps: bool) -> None:
        """Read the bytes, in the order of `keys`."""
        missing = {**self._found}
        for key in keys:
            at = file.tell()
            if type(key) is not str or key not in missing:
                raise Damaged(
                    f"the list of storages has {brief(key)}, which the object has not, or twice", at
                )
            kind, count, storage = missing.pop(key)
            (written,) = struct.unpack(">q" if swaps else "<q", _exactly(file, 8))
            if written != count:
                raise Damaged(f"storage {brief(key)} has wrong size: expected {count} got {written}", at)
            data = np.frombuffer(bytearray(_exactly(file, count * kind.itemsize)), np.uint8)
            if swaps:
                swap(data, kind)
            write(row_of(storage), over(data, dtypes.uint8))
        self._filled = True
        if missing:
            raise Damaged(f"the list of storages lacks {brief([*missing])}", file.tell())


def _exactly(file: Any, nbytes: int) -> bytes:
    at = file.tell()
    data: bytes = file.read(nbytes)
    if len(data) != nbytes:
        raise Damaged(
            f"unexpected EOF, expected {nbytes - len(data)} more bytes. The file might be corrupted.", at
        )
    return data
