"""torch.serialization: checkpoints, with `torch.save` and `torch.load`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from flambeau.core.device import device
from flambeau.core.public_names import explain_absent_names
from flambeau.serialization.checkpoint_files import get_unsafe_globals_in_checkpoint, load, save
from flambeau.serialization.checkpoint_options import (
    LoadEndianness,
    SourceChangeWarning,
    check_module_version_greater_or_equal,
    get_crc32_options,
    get_default_load_endianness,
    get_default_mmap_options,
    mkdtemp,
    normalize_storage_type,
    set_crc32_options,
    set_default_load_endianness,
    set_default_mmap_options,
    skip_data,
    storage_to_tensor_type,
)
from flambeau.serialization.places import (
    default_restore_location,
    location_tag,
    register_package,
    validate_cuda_device,
    validate_hpu_device,
)
from flambeau.serialization.safety import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)
from flambeau.tensor.storages import UntypedStorage

__all__ = [
    "DEFAULT_PROTOCOL", "MAP_LOCATION", "LoadEndianness", "SourceChangeWarning", "StorageType", "add_safe_globals",
    "check_module_version_greater_or_equal", "clear_safe_globals", "default_restore_location", "get_crc32_options",
    "get_default_load_endianness", "get_default_mmap_options", "get_safe_globals",
    "get_unsafe_globals_in_checkpoint", "load", "location_tag", "mkdtemp", "normalize_storage_type",
    "register_package", "safe_globals", "save", "set_crc32_options", "set_default_load_endianness",
    "set_default_mmap_options", "skip_data", "storage_to_tensor_type", "validate_cuda_device", "validate_hpu_device",
]  # fmt: skip

StorageType = UntypedStorage
DEFAULT_PROTOCOL = 2
MAP_LOCATION: TypeAlias = Callable[[Any, str], Any] | device | str | dict[str, str] | None

explain_absent_names(globals(), "torch.serialization")
