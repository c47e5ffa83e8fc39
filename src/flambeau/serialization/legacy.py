"""PyTorch's older checkpoint format (before 1.6): pickles one after another, then the bytes of the storages."""

from __future__ import annotations

import struct
from pickle import UnpicklingError
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.serialization.names import StorageKind
from flambeau.serialization.places import Restore
from flambeau.serialization.reader import Read, empty_storage, face_for, restored, storage_id, swap
from flambeau.tensor.data import over
from flambeau.tensor.pickling import row_of
from flambeau.tensor.storage import Storage
from flambeau.tensor.transfer import write

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001


def load_legacy(file: Any, restore: Restore, read: Read) -> Any:
    """Read an object; the file then stands behind its last storage.

    Raises RuntimeError: it is no checkpoint, of another version, or damaged; UnpicklingError: as `load`.
    """
    if read(file, _no_storage) != MAGIC:
        raise RuntimeError("Invalid magic number; corrupt file?")
    version = read(file, _no_storage)
    if version != VERSION:
        raise RuntimeError(f"Invalid protocol version: {version}")
    system = read(file, _no_storage)
    storages = _Storages(restore)
    found = read(file, storages.load)
    keys = read(file, _no_storage)
    if not isinstance(keys, list) or not isinstance(system, dict):
        raise RuntimeError("the checkpoint is damaged: its list of storages is missing")
    storages.fill(file, keys, not system.get("little_endian", True))
    return found


class _Storages:
    """Storages that the pickle names before their bytes come."""

    def __init__(self, restore: Restore) -> None:
        self._restore = restore
        self._found: dict[str, tuple[StorageKind, int, Storage]] = {}

    def load(self, pid: Any) -> Any:
        """The storage that a persistent id names, where it belongs, without its bytes."""
        match pid:
            case ("module", cls, *_):  # a class with its source, which is not compared
                return cls
            case ("storage", _, _, _, _, view) if view is not None:
                raise RuntimeError("the checkpoint has views of storages, which PyTorch 0.3 and older wrote")
        kind, key, location, count = storage_id(pid)
        if key not in self._found:
            storage = restored(empty_storage(count * kind.itemsize), self._restore, location)
            self._found[key] = kind, count, storage
        return face_for(kind, self._found[key][2])

    def fill(self, file: Any, keys: list[str], swaps: bool) -> None:
        """Read the bytes, in the order of `keys`."""
        for key in keys:
            kind, count, storage = self._found[key]
            (written,) = struct.unpack(">q" if swaps else "<q", _exactly(file, 8))
            if written != count:
                raise RuntimeError(f"storage {key} has wrong size: expected {count} got {written}")
            data = np.frombuffer(bytearray(_exactly(file, count * kind.itemsize)), np.uint8)
            if swaps:
                swap(data, kind)
            write(row_of(storage), over(data, dtypes.uint8))


def _no_storage(pid: Any) -> Any:
    raise UnpicklingError(f"only the object itself may name storages, but got {pid!r}")


def _exactly(file: Any, nbytes: int) -> bytes:
    data: bytes = file.read(nbytes)
    if len(data) != nbytes:
        raise RuntimeError(
            f"unexpected EOF, expected {nbytes - len(data)} more bytes. The file might be corrupted."
        )
    return data
