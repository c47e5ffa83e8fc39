"""`save` and `load`: writing and reading PyTorch's checkpoint files."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any

from flambeau.core.files import replacing
from flambeau.core.ipc.pickle_reader import Refused
from flambeau.serialization import safety
from flambeau.serialization.archive import ALIGNMENT, ArchiveReader, ArchiveWriter, Damaged, is_archive
from flambeau.serialization.legacy import load_legacy
from flambeau.serialization.pickle_machine import refused_names
from flambeau.serialization.pickle_writer import Storages, pickle_object
from flambeau.serialization.places import Restore, restorer
from flambeau.serialization.reader import Reader, StoredStorages, reader
from flambeau.tensor.exchange.pickling import row_of
from flambeau.tensor.exchange.transfer import host_array, on_host

DEFAULT_PROTOCOL = 2
_DOCUMENTATION = (
    "Check the documentation of torch.load to learn more about types accepted by default with weights_only "
    "https://pytorch.org/docs/stable/generated/torch.load.html."
)


# -- save -------------------------------------------------------------------------------------------------


def save(
    obj: Any,
    f: Any,
    pickle_module: ModuleType = pickle,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Write an object to a checkpoint file that PyTorch and Flambeau read.

    The file at a path is replaced completely or, if the program ends meanwhile, not at all.

    Args:
        obj: A tensor, a module, or Python containers of these.
        f: A path, or a binary file object with `write`.
        pickle_module: A module with a Pickler that is written in Python, such as the standard `pickle` (`_Pickler`).
        pickle_protocol: The protocol of the pickle. PyTorch's weights_only loading reads protocol 2.

    Raises:
        RuntimeError: If two tensors view the same memory as different types, or the directory does not exist.
    """
    if not _use_new_zipfile_serialization:
        raise NotImplementedError(
            "Flambeau writes zip files; it reads PyTorch's older format, but writes none"
        )
    storages = Storages()
    data = pickle_object(obj, storages, pickle_module, pickle_protocol)
    with _to_write(f) as (file, name), ArchiveWriter(file, name) as archive:
        archive.write("data.pkl", data)
        archive.write(".format_version", b"1")
        archive.write(".storage_alignment", str(ALIGNMENT).encode())
        archive.write(
            "byteorder", sys.byteorder.encode()
        )  # PyTorch's writer adds it if the flag disables it, too
        for key, storage in storages.found.items():
            here = on_host(row_of(storage))  # named: a window does not keep its memory
            archive.write(f"data/{key}", host_array(here))
        archive.write("version", b"3\n")


@contextmanager
def _to_write(f: Any) -> Iterator[tuple[Any, str]]:
    """Return the file object to write to, and the archive's name: the file's name without its extension, if ASCII."""
    if not isinstance(f, (str, os.PathLike)):
        if not hasattr(f, "write"):
            raise AttributeError(
                "expected 'f' to be string, path, or a file-like object with a 'write' attribute"
            )
        yield f, "archive"
        return
    path = Path(f)
    if not path.parent.is_dir():
        raise RuntimeError(f"Parent directory {path.parent} does not exist.")
    with replacing(path) as file:
        yield file, path.stem if path.name.isascii() else "archive"


# -- load -------------------------------------------------------------------------------------------------


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: ModuleType | None = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Read an object from a checkpoint file that PyTorch or Flambeau wrote.

    Args:
        f: A path, or a seekable binary file object.
        map_location: The devices of the storages: None (those at the time of saving), a device or its name, a dict of
            names, or a function. The function receives a storage on the CPU and its saved location, and returns a
            storage or None.
        pickle_module: The module whose Unpickler is used, without `weights_only`.
        weights_only: Read only tensors, plain containers and the types that `add_safe_globals` declared (the default,
            unless `pickle_module` is given). False runs code of the file: use it for trusted files only.
        mmap: Map the storages from the file, copy-on-write, and read them when they are used. Paths only.
        pickle_load_args: `encoding` and `errors` for strings of Python 2.

    Raises:
        UnpicklingError: If something is refused, which the text names, or the file is not a checkpoint.
        RuntimeError: If the file is damaged, or a storage's device does not exist.
        EOFError: If the file is empty.
    """
    if weights_only is None:
        weights_only = pickle_module is None
    elif weights_only and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    machine = reader(weights_only, pickle_module or pickle, {"encoding": "utf-8"} | pickle_load_args)
    with _to_read(f) as file, _explaining(f, weights_only):
        return _load(file, f, bool(mmap), restorer(map_location), machine)


def get_unsafe_globals_in_checkpoint(f: Any) -> list[str]:
    """Return the names in a checkpoint that `weights_only` loading refuses with the current settings. Calls nothing."""
    with _to_read(f) as file, _explaining(f):
        data = ArchiveReader(file).read("data.pkl")
        return refused_names(io.BytesIO(data), safety.declared_globals())


@contextmanager
def _to_read(f: Any) -> Iterator[Any]:
    """Return the file object to read from."""
    if isinstance(f, (str, os.PathLike)):
        with Path(f).open("rb") as file:
            yield file
        return
    for name in ("seek", "tell", "read"):
        if not hasattr(f, name):
            raise AttributeError(
                f"{type(f).__name__!r} object has no attribute {name!r}. You can only torch.load from a file "
                "that is seekable. Please pre-load the data into a buffer like io.BytesIO and try to load "
                "from it instead."
            )
    yield f


def _load(file: Any, path: Any, mapped: bool, restore: Restore, machine: Reader) -> Any:
    if not is_archive(file):
        if mapped:
            raise RuntimeError(
                "mmap can only be used with files saved with `torch.save(_use_new_zipfile_serialization=True), "
                "please torch.save your checkpoint with this option in order to use mmap."
            )
        return load_legacy(file, restore, machine)
    if mapped and not isinstance(path, (str, os.PathLike)):
        raise ValueError("f must be a file path in order to use the mmap argument")
    archive = ArchiveReader(file, os.fspath(path) if mapped else None)
    if archive.has("constants.pkl"):
        raise RuntimeError(
            "this is a TorchScript archive: Flambeau has no TorchScript. Save a state_dict instead"
        )
    data = archive.read("data.pkl")
    if not data:
        raise Damaged("the pickle of the checkpoint is empty", archive.place("data.pkl"))
    storages = StoredStorages(archive, restore)
    try:
        return machine.read(io.BytesIO(data), storages.load)
    finally:
        storages.meter.clear()


@contextmanager
def _explaining(f: Any, weights_only: bool = True) -> Iterator[None]:
    """Return a context manager that adds the file and the position to errors."""
    name = os.fspath(f) if isinstance(f, (str, os.PathLike)) else getattr(f, "name", type(f).__name__)
    try:
        yield
    except Refused as error:
        place = name if error.position is None else f"{name}, byte {error.position} of the pickle"
        explained = UnpicklingError(_explain_refusal(error, place) if weights_only else f"{error} ({place})")
        explained.add_note(f"in {place}")
        raise explained from (None if weights_only else error.__cause__)
    except Damaged as error:
        raise RuntimeError(f"{error} ({name}{'' if error.at is None else f', byte {error.at}'})") from None
    except Exception as error:
        error.add_note(f"while {name} was loaded")
        raise


def _explain_refusal(error: Refused, place: str) -> str:
    """Return PyTorch's error text for a refused name."""
    if error.name is None:
        return (
            "Weights only load failed. The file is damaged, or it needs what Flambeau's `weights_only=True` "
            "cannot do. Re-running `torch.load` with `weights_only` set to `False` may succeed, but it can "
            "result in arbitrary code execution. Do it only if you got the file from a trusted source.\n"
            f"WeightsUnpickler error: {error} ({place})\n\n{_DOCUMENTATION}"
        )
    return (
        "Weights only load failed. This file can still be loaded, to do so you have two options, do those steps "
        "only if you trust the source of the checkpoint. \n"
        "\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from "
        "`False` to `True`. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but "
        "it can result in arbitrary code execution. Do it only if you got the file from a trusted source.\n"
        "\t(2) Alternatively, to load with `weights_only=True` please check the recommended steps in the "
        f"following error message.\n\tWeightsUnpickler error: {error}\n\n{_DOCUMENTATION}"
    )
