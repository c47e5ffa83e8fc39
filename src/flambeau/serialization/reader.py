"""`reader` and `StoredStorages`: the unpicklers of a checkpoint, and the storages that it contains."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.brief import brief, brief_text
from flambeau.core.device import CPU
from flambeau.core.ipc.pickle_reader import Refused
from flambeau.core.meta import Meta
from flambeau.core.status_line import Meter
from flambeau.serialization import safety
from flambeau.serialization.archive import ArchiveReader, Damaged, size_of
from flambeau.serialization.checkpoint_options import LoadEndianness, get_default_load_endianness
from flambeau.serialization.outline import OutlineReader
from flambeau.serialization.pickle_machine import PickleMachine
from flambeau.serialization.pickle_names import StorageKind
from flambeau.serialization.places import Restore
from flambeau.serialization.unpickler import PersistentLoad, outline_unpickler, unpickler
from flambeau.tensor.call import empty
from flambeau.tensor.exchange.data import over
from flambeau.tensor.exchange.pickling import face_of
from flambeau.tensor.exchange.transfer import host_array
from flambeau.tensor.storage import ForeignStorage, Storage
from flambeau.tensor.storages import Face, TypedStorage, UntypedStorage

MIB = 1 << 20
Read = Callable[[Any, PersistentLoad], Any]
"""Reads one pickled object from a file; `persistent_load` gives the storages."""


class Reader(NamedTuple):
    """The two functions that interpret a pickle of a checkpoint.

    Attributes:
        read: Builds and returns the object.
        outline: Calls `persistent_load` for each storage of the object, and builds nothing.
    """

    read: Read
    outline: Read


def reader(weights_only: bool, module: ModuleType, options: dict[str, Any]) -> Reader:
    """Return the reader for a checkpoint: the restricted one for `weights_only`, else `module`'s Unpickler."""
    if not weights_only:
        return Reader(unpickler(module, options), outline_unpickler(options))

    def read(file: Any, persistent_load: PersistentLoad) -> Any:
        bounded = Bounded(file)
        declared = safety.declared_globals()
        return PickleMachine(persistent_load, declared, bounded.nbytes, options["encoding"]).load(bounded)

    def outline(file: Any, persistent_load: PersistentLoad) -> Any:
        bounded = Bounded(file)
        return OutlineReader(persistent_load, bounded.nbytes, options["encoding"]).load(bounded)

    return Reader(read, outline)


class Bounded:
    """A file that never reads more than it has, because a damaged pickle may state wrong lengths of its parts.

    Attributes:
        nbytes: Size of the file.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.tell, self.readline = file.tell, file.readline
        self.nbytes = size_of(file)

    def read(self, count: int = -1) -> bytes:
        """Return so many bytes, or as many as there are."""
        left = max(self.nbytes - self.tell(), 0)
        data: bytes = self._file.read(min(count, left) if count >= 0 else left)
        return data


class StoredStorages:
    """The storages of an archive, each read once, when the pickle names it."""

    def __init__(self, archive: ArchiveReader, restore: Restore) -> None:
        self._archive = archive
        self._restore = restore
        self._found: dict[str, Storage] = {}
        self._nbytes = 0  # read until now
        self.meter = Meter("torch.load", archive.nbytes / MIB, "MiB")
        named = archive.read("byteorder") if archive.has("byteorder") else None
        self._swaps = named == b"big" or (
            named is None and get_default_load_endianness() is LoadEndianness.BIG
        )

    def load(self, pid: Any) -> Face:
        """Return the storage that a persistent id names."""
        kind, key, location, count = storage_id(pid)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._read(kind, key, location, count)
        return face_for(kind, found)

    def _read(self, kind: StorageKind, key: str, location: str, count: int) -> Storage:
        record = f"data/{key}"
        nbytes = self._archive.size(record)
        if nbytes != count * kind.itemsize:
            raise Damaged(
                f"the checkpoint is damaged: storage {brief_text(key)} has {nbytes} bytes, and its description says "
                f"{count} elements of {kind.itemsize} bytes",
                self._archive.place(record),
            )
        window = None if self._swaps else self._archive.map_record(record)
        if window is not None:
            return restore_storage(over(window, dtypes.uint8, ForeignStorage).memory, self._restore, location)
        storage = empty_storage(nbytes)
        target = bytes_of(storage)
        self._archive.read_into(record, target)
        if self._swaps:
            swap(target, kind)
        restored = restore_storage(storage, self._restore, location)
        self._nbytes += nbytes
        self.meter.update(self._nbytes / MIB)
        return restored


def storage_id(pid: Any) -> tuple[StorageKind, str, str, int]:
    """Return kind, key, location and number of elements of a persistent id.

    Raises:
        UnpicklingError: If it is invalid.
    """
    if type(pid) is tuple and len(pid) >= 5 and type(pid[0]) is str and pid[0] == "storage":
        kind, key, location, count = pid[1:5]
        types = (type(kind), type(key), type(location), type(count))
        if types == (StorageKind, str, str, int) and 0 <= count < 1 << 63:
            return kind, key, location, count
    raise Refused(f"a persistent id must describe a storage, but got {brief(pid)}")


def face_for(kind: StorageKind, storage: Storage) -> Face:
    """Return a storage as the checkpoint's storage class."""
    cls = UntypedStorage if kind.dtype is None else TypedStorage
    face: Face = face_of(cls, storage, kind.dtype or dtypes.uint8)
    return face


def empty_storage(nbytes: int) -> Storage:
    """Return a new storage on the CPU."""
    return empty(Meta.contiguous_of((nbytes,), dtypes.uint8, CPU)).memory


def bytes_of(storage: Storage) -> np.ndarray[Any, Any]:
    """Return the writable bytes of a storage on the CPU. The caller keeps the storage alive."""
    window: np.ndarray[Any, Any] = host_array(face_of(UntypedStorage, storage, dtypes.uint8)._row, write=True)
    return window


def restore_storage(storage: Storage, restore: Restore, location: str) -> Storage:
    """Return a storage that was read, moved to the location that `restore` chooses."""
    moved = restore(face_of(UntypedStorage, storage, dtypes.uint8), location)
    return moved._row.memory


def swap(data: np.ndarray[Any, Any], kind: StorageKind) -> None:
    """Swap the bytes of each element in place, for checkpoints from a machine of the other byte order.

    Raises:
        RuntimeError: If the element size is unknown.
    """
    if kind.dtype is None:
        raise RuntimeError(
            "the checkpoint is of a big-endian machine, and a storage of bytes does not say how to turn it"
        )
    size = kind.itemsize // 2 if kind.dtype.is_complex else kind.itemsize
    if size > 1:
        data.view(f"u{size}").byteswap(inplace=True)
