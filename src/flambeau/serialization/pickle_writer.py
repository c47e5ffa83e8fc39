"""`Writer`: pickles an object as PyTorch does, with PyTorch's names, and takes the storages out."""

from __future__ import annotations

import io
import pickle
from types import FunctionType, ModuleType
from typing import Any

from flambeau.serialization import pickle_names
from flambeau.serialization.pickle_names import BYTES, STORAGES, StorageKind
from flambeau.serialization.places import location_tag
from flambeau.tensor.arguments.typing import layout
from flambeau.tensor.storage import Storage
from flambeau.tensor.storages import Face, TypedStorage


class Storages:
    """The storages of one checkpoint, by their keys "0", "1", ..., in the order in which the pickler met them."""

    def __init__(self) -> None:
        self.found: dict[str, Storage] = {}
        self._keys: dict[int, str] = {}
        self._kinds: dict[int, StorageKind] = {}

    def describe(self, face: Face) -> tuple[Any, ...]:
        """Return the persistent id of a storage in the pickle: its class, key, device and number of elements."""
        storage = face._row.memory
        kind = STORAGES[face.dtype] if isinstance(face, TypedStorage) else BYTES
        if storage.ptr and self._kinds.setdefault(storage.ptr, kind) is not kind:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different types"
            )
        key = self._keys.setdefault(id(storage), str(len(self._keys)))
        self.found[key] = storage
        return ("storage", kind, key, location_tag(face), storage.nbytes // kind.itemsize)


def pickle_object(obj: Any, storages: Storages, module: ModuleType, protocol: int) -> bytes:
    """Return `obj` pickled; its storages are left to `storages`.

    Raises:
        TypeError: If the pickler of `module` is not one written in Python, so it cannot write PyTorch's
            names.
    """
    base = getattr(module, "_Pickler", None) or module.Pickler
    if not issubclass(base, pickle._Pickler):
        raise TypeError(
            f"torch.save(): the Pickler of pickle_module {module.__name__} is not written in Python; Flambeau "
            "cannot make it write PyTorch's names, which a checkpoint needs. Use the standard pickle module."
        )
    buffer = io.BytesIO()
    writer: Any = type("Writer", (Writer, base), {})
    writer(buffer, protocol, storages).dump(obj)
    return buffer.getvalue()


class Writer:
    """The methods that Flambeau adds to a module's Pickler class."""

    def __init__(self, file: Any, protocol: int, storages: Storages) -> None:
        super().__init__(file, protocol=protocol)  # type: ignore[call-arg]
        self._storages = storages

    def persistent_id(self, obj: Any) -> Any:
        return self._storages.describe(obj) if isinstance(obj, Face) else None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is StorageKind:
            return obj.name
        if kind is FunctionType:
            return obj.__qualname__
        if kind is layout:
            return pickle_names.layout_of, (str(obj),)
        return NotImplemented

    def save_global(self: Any, obj: Any, name: str | None = None) -> None:
        """Write a name. An object of Flambeau gets the name that it has in PyTorch."""
        found = pickle_names.pytorch_name_of(obj, name)
        if found is None:
            super().save_global(obj, name)  # type: ignore[misc]
            return
        self.write(pickle.GLOBAL + "{}\n{}\n".format(*found).encode())
        self.memoize(obj)
