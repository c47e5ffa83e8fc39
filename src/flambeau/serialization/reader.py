"""What unpickles a checkpoint, and what finds its storages."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.device import CPU
from flambeau.core.meta import Meta
from flambeau.serialization import names, safety
from flambeau.serialization.archive import ArchiveReader
from flambeau.serialization.machine import Machine, Refused
from flambeau.serialization.names import StorageKind
from flambeau.serialization.places import Restore
from flambeau.tensor.call import empty
from flambeau.tensor.data import over
from flambeau.tensor.pickling import face_of
from flambeau.tensor.storage import ForeignStorage, Storage
from flambeau.tensor.storages import Face, TypedStorage, UntypedStorage
from flambeau.tensor.transfer import host_array

PersistentLoad = Callable[[Any], Any]
Read = Callable[[Any, PersistentLoad], Any]
"""Reads one pickled object from a file; `persistent_load` gives the storages."""


def reader(weights_only: bool, module: ModuleType, options: dict[str, Any]) -> Read:
    """The machine that runs what is allowed only, or `module`'s Unpickler."""
    if weights_only:
        encoding = options["encoding"]
        return lambda file, persistent_load: Machine(persistent_load, safety.declared(), encoding).load(file)

    class Unpickler(module.Unpickler):  # type: ignore[misc, name-defined]
        def __init__(self, file: Any, persistent_load: PersistentLoad) -> None:
            super().__init__(file, **options)
            self._persistent_load = persistent_load

        def persistent_load(self, pid: Any) -> Any:
            return self._persistent_load(pid)

        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] == "torch":
                return names.find(module, name)
            return super().find_class(module, name)

    return lambda file, persistent_load: Unpickler(file, persistent_load).load()


class StoredStorages:
    """The storages of an archive, each read once, when the pickle names it."""

    def __init__(self, archive: ArchiveReader, restore: Restore) -> None:
        self._archive = archive
        self._restore = restore
        self._found: dict[str, Storage] = {}
        self._swaps = archive.has("byteorder") and archive.read("byteorder") == b"big"

    def load(self, pid: Any) -> Face:
        """The storage that a persistent id names."""
        kind, key, location, count = storage_id(pid)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._read(kind, key, location, count)
        return face_for(kind, found)

    def _read(self, kind: StorageKind, key: str, location: str, count: int) -> Storage:
        record = f"data/{key}"
        nbytes = self._archive.size(record)
        if nbytes != count * kind.itemsize:
            raise RuntimeError(
                f"the checkpoint is damaged: storage {key} has {nbytes} bytes, and its description says "
                f"{count} elements of {kind.itemsize} bytes"
            )
        window = None if self._swaps else self._archive.mapped(record)
        if window is not None:
            return restored(over(window, dtypes.uint8, ForeignStorage).memory, self._restore, location)
        storage = empty_storage(nbytes)
        target = bytes_of(storage)
        self._archive.read_into(record, target)
        if self._swaps:
            swap(target, kind)
        return restored(storage, self._restore, location)


def storage_id(pid: Any) -> tuple[StorageKind, str, str, int]:
    """(kind, key, location, number of elements) of a persistent id. Raises UnpicklingError: it is none."""
    match pid:
        case ("storage", StorageKind() as kind, str(key), str(location), int(count), *_):
            return kind, key, location, count
    raise Refused(f"a persistent id must describe a storage, but got {pid!r}")


def face_for(kind: StorageKind, storage: Storage) -> Face:
    """A storage as the checkpoint's storage class."""
    cls = UntypedStorage if kind.dtype is None else TypedStorage
    face: Face = face_of(cls, storage, kind.dtype or dtypes.uint8)
    return face


def empty_storage(nbytes: int) -> Storage:
    """A new storage on the CPU."""
    return empty(Meta.contiguous_of((nbytes,), dtypes.uint8, CPU)).memory


def bytes_of(storage: Storage) -> np.ndarray[Any, Any]:
    """The bytes of a storage on the CPU, to be written to. The caller keeps the storage."""
    window: np.ndarray[Any, Any] = host_array(face_of(UntypedStorage, storage, dtypes.uint8)._row, write=True)
    return window


def restored(storage: Storage, restore: Restore, location: str) -> Storage:
    """A storage, just read, where it belongs."""
    moved = restore(face_of(UntypedStorage, storage, dtypes.uint8), location)
    return moved._row.memory


def swap(data: np.ndarray[Any, Any], kind: StorageKind) -> None:
    """Turn elements of a big-endian machine around, in place. Raises RuntimeError: their size is unknown."""
    if kind.dtype is None:
        raise RuntimeError(
            "the checkpoint is of a big-endian machine, and a storage of bytes does not say how to turn it"
        )
    size = kind.itemsize // 2 if kind.dtype.is_complex else kind.itemsize
    if size > 1:
        data.view(f"u{size}").byteswap(inplace=True)
