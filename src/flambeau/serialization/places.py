"""Where the storages of a checkpoint go: `map_location` in all its forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flambeau.core.brief import brief_text
from flambeau.core.device import device
from flambeau.core.errors import type_name
from flambeau.runtime import system
from flambeau.tensor.storages import UntypedStorage

_LONGEST = 100  # letters of a place's name
_ABSENT = {
    "xpu": "Attempting to deserialize object on a XPU device but torch.xpu.is_available() is False",
    "hpu": "The HPU device module is not registered",
    "privateuseone": "The PRIVATEUSEONE device module is not registered",
}
Restore = Callable[[UntypedStorage, str], UntypedStorage]

Tagger = Callable[[Any], str | None]
Deserializer = Callable[[Any, str], Any]
_registered: list[tuple[int, Tagger, Deserializer]] = []  # by `register_package`, in order of priority


def restorer(map_location: Any) -> Restore:
    """Return a function that moves a storage from the CPU to its device: `restore(storage, saved location)`.

    `map_location` is None (back to where it was), a device or its name, a dict of names, or a function of a
    storage and its location that gives a storage, or None for back to where it was.
    """
    restore = _restorer(map_location)

    def restore_checked(storage: UntypedStorage, location: str) -> UntypedStorage:
        if not isinstance(location, str):  # the file's mistake, not the caller's
            raise RuntimeError(f"the location of a storage must be a str, not {type_name(location)}")
        return restore(storage, location)

    return restore_checked


def _restorer(map_location: Any) -> Restore:
    if map_location is None:
        return default_restore_location
    if isinstance(map_location, Mapping):
        return lambda storage, location: default_restore_location(
            storage, map_location.get(location, location)
        )
    if isinstance(map_location, (str, bytes, device)):
        name = str(map_location) if isinstance(map_location, device) else map_location
        if isinstance(map_location, device) and map_location.type == "meta":
            name = "meta"  # PyTorch's meta device has no index
        return lambda storage, location: default_restore_location(storage, name)
    return lambda storage, location: _by_function(map_location, storage, location)


def default_restore_location(storage: UntypedStorage, location: Any) -> UntypedStorage:
    """Return a storage with the elements of `storage` at a location: "cpu", "cuda" or "cuda:1".

    Raises:
        TypeError: If the location is not a str. A device is one only as `map_location` itself.
        RuntimeError: If there is no such place here. As in PyTorch, "cpu:0" is not one.
    """
    if not isinstance(location, str):
        raise TypeError(f"torch.load(): expected a location of type str, but got {type_name(location)}")
    for _, _, deserializer in _registered:
        there = deserializer(storage, location)
        if there is not None:
            return there
    name = location
    if name == "cpu":
        return storage
    if name == "meta":
        return UntypedStorage(storage.nbytes(), device="meta")
    if len(name) <= _LONGEST and (name == "cuda" or name.startswith("cuda:")):
        found: UntypedStorage = storage.cuda(_check_device(device(name)))
        return found
    kind = name.partition(":")[0]
    if kind in _ABSENT:
        raise RuntimeError(
            f"{_ABSENT[kind]}. If you are running on a CPU-only machine, please use torch.load with "
            "map_location=torch.device('cpu') to map your storages to the CPU."
        )
    raise RuntimeError(
        f"don't know how to restore data location of torch.storage.UntypedStorage (tagged with {brief_text(name)})"
    )


def location_tag(storage: Any) -> str:
    """Return the name of a storage's device: "cpu", "cuda:0", or the name that a registered function returns."""
    for _, tagger, _ in _registered:
        tag = tagger(storage)
        if tag:
            return str(tag)
    return str(storage.device)


def register_package(priority: int, tagger: Tagger, deserializer: Deserializer) -> None:
    """Register functions that name the places of storages in checkpoints, and that find them again.

    Args:
        priority: Functions of lower priority are called first. Those of Flambeau are called last.
        tagger: Called with a storage; returns the name of its place, or None if it is not responsible.
        deserializer: Called with a storage on the CPU and a name; returns the storage there, or None if it is not
            responsible.
    """
    _registered.append((priority, tagger, deserializer))
    _registered.sort(key=lambda entry: entry[0])


def validate_cuda_device(location: str) -> int:
    """Return the index of a CUDA device by its name: "cuda", "cuda:1". Raises RuntimeError if it is not here."""
    return _check_device(device(location)).index or 0


def validate_hpu_device(location: str) -> int:
    """Raise RuntimeError: Flambeau has no HPU."""
    raise RuntimeError(
        "Attempting to deserialize object on a HPU device but torch.hpu.is_available() is False. If you are running on "
        "a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the "
        "CPU."
    )


def _by_function(function: Any, storage: UntypedStorage, location: str) -> UntypedStorage:
    found = function(storage, location)
    if found is None:
        return default_restore_location(storage, location)
    found = getattr(found, "untyped", lambda: found)()
    if not isinstance(found, UntypedStorage):
        raise TypeError(
            "torch.load(): the function given as map_location must give a storage or None, "
            f"not {type(found).__name__}"
        )
    return found


def _check_device(where: device) -> device:
    if not system.is_available():
        raise RuntimeError(
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are "
            "running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map "
            "your storages to the CPU."
        )
    count = system.device_count()
    if where.index is not None and where.index >= count:
        raise RuntimeError(
            f"Attempting to deserialize object on CUDA device {where.index} but torch.cuda.device_count() is "
            f"{count}. Please use torch.load with map_location to map your storages to an existing device."
        )
    return where
