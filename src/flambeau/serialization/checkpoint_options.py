"""Settings of checkpoints, and functions that libraries use around them."""

from __future__ import annotations

import mmap
import warnings
from enum import Enum
from tempfile import TemporaryDirectory
from typing import Any

from flambeau.core.errors import NotSupportedError, RaceError
from flambeau.tensor.arguments.public import functions


class SourceChangeWarning(Warning):
    """The warning that a module's source differs from that of a checkpoint. Flambeau stores no sources."""


class LoadEndianness(Enum):
    """The byte order of checkpoints that do not name theirs."""

    NATIVE = 1
    LITTLE = 2
    BIG = 3


class _CheckpointOptions:
    """The settings of this process.

    Attributes:
        endianness: The byte order of checkpoints that do not name theirs; None is the machine's.
        computes_crc32: What `set_crc32_options` was called with.
    """

    endianness: LoadEndianness | None = None
    computes_crc32 = True


_options = _CheckpointOptions()


def get_default_load_endianness() -> LoadEndianness | None:
    """Return the byte order that `load` assumes for checkpoints that do not name theirs; None stands for the byte order
    of this machine.
    """
    return _options.endianness


def set_default_load_endianness(endianness: LoadEndianness | None) -> None:
    """Set the byte order that `load` assumes for checkpoints that do not name theirs.

    Raises:
        TypeError: If `endianness` is neither a LoadEndianness nor None.
    """
    if endianness is not None and not isinstance(endianness, LoadEndianness):
        raise TypeError("Invalid argument type in function set_default_load_endianness")
    _options.endianness = endianness


def get_crc32_options() -> bool:
    """Return the last value of `set_crc32_options`, at first True."""
    return _options.computes_crc32


def set_crc32_options(compute_crc32: bool) -> None:
    """Set whether `save` may leave checksums out. Flambeau writes them in both cases; all readers accept them."""
    _options.computes_crc32 = bool(compute_crc32)


def get_default_mmap_options() -> int:
    """Return how `load(mmap=True)` maps files: `mmap.MAP_PRIVATE`, so writes do not reach the file."""
    return mmap.MAP_PRIVATE


class set_default_mmap_options:
    """Set how `load(mmap=True)` maps files, as a call or as a context manager.

    Raises:
        ValueError: If `flags` is neither `mmap.MAP_PRIVATE` nor `mmap.MAP_SHARED`.
        NotSupportedError: For `mmap.MAP_SHARED`.
    """

    def __init__(self, flags: int) -> None:
        if flags not in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            raise ValueError(
                f"Invalid argument in function set_default_mmap_options, expected mmap.MAP_PRIVATE or mmap.MAP_SHARED, "
                f"but got {flags}"
            )
        if flags == mmap.MAP_SHARED:
            raise NotSupportedError(
                "set_default_mmap_options(mmap.MAP_SHARED): Flambeau maps checkpoints copy-on-write, so that writes do "
                "not change the file. Save the changed tensors with torch.save."
            )

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class skip_data:
    """Refuse PyTorch's context manager in which `torch.save` reserves space for tensors without writing their data.

    Raises:
        NotSupportedError: Always.
    """

    def __init__(self, materialize_fake_tensors: bool = False) -> None:
        raise NotSupportedError(
            "torch.serialization.skip_data: Flambeau writes whole checkpoints. Save the tensors themselves, or their "
            "shapes and dtypes."
        )


def mkdtemp() -> TemporaryDirectory[str]:
    """Return a context manager of a new directory, which is removed at the end."""
    return TemporaryDirectory()


def check_module_version_greater_or_equal(
    module: Any, req_version_tuple: tuple[int, ...], error_if_malformed: bool = True
) -> bool:
    """Return True if a module's `__version__` is at least a required version.

    Args:
        module: The module.
        req_version_tuple: The required version: (1, 13, 1).
        error_if_malformed: True to raise for a version that is not a list of numbers; otherwise that is a warning,
            and the result True.

    Raises:
        RuntimeError: If the version is malformed and `error_if_malformed`.
    """
    count = len(req_version_tuple)
    try:
        parts = module.__version__.split(".")[:count]
        version = tuple([type(want)(part) for want, part in zip(req_version_tuple, parts, strict=True)])
    except RaceError:
        raise
    except Exception as error:
        message = (
            f"'{module.__name__}' module version string is malformed '{module.__version__}' and cannot be compared "
            f"with tuple {req_version_tuple}"
        )
        if error_if_malformed:
            raise RuntimeError(message) from error
        warnings.warn(f"{message}, but continuing assuming that requirement is met", stacklevel=2)
        return True
    return version >= req_version_tuple


def normalize_storage_type(storage_type: type) -> Any:
    """Return the class of `torch` of the same name as a storage class: `torch.FloatStorage`."""
    return functions[storage_type.__name__]


def storage_to_tensor_type(storage: Any) -> Any:
    """Return the tensor type of a typed storage: `torch.FloatTensor` for `torch.FloatStorage`."""
    return functions[f"{storage.dtype.torch_name}Tensor"]
