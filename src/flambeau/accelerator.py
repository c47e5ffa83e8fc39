"""torch.accelerator: what programs ask of whatever accelerator there is. Here it is CUDA, real or virtual.

As in PyTorch built with CUDA, `current_accelerator()` says `cuda` where no GPU is, too; `is_available()` says whether
one is. A `device` is a torch.device, a str or an int; None is the current one.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from flambeau import cuda
from flambeau.core.device import device as _device
from flambeau.core.dtype import DTYPES
from flambeau.core.public_names import explain_absent_names, publish
from flambeau.cuda import (
    current_stream,
    device_count,
    empty_cache,
    is_available,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from flambeau.runtime import current, system

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "current_stream", "device_count",
    "device_index", "empty_cache", "empty_host_cache", "get_device_capability", "get_memory_info", "is_available",
    "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "memory_stats",
    "reset_accumulated_memory_stats", "reset_peak_memory_stats", "set_device_idx", "set_device_index", "set_stream",
    "synchronize",
]  # fmt: skip


def current_accelerator(check_available: bool = False) -> _device | None:
    """Return `torch.device("cuda")`, without an index. check_available: None where there is no GPU."""
    return None if check_available and not is_available() else _device("cuda")


def current_device_index() -> int:
    """Return the index of the current device. Initializes CUDA."""
    return cuda.current_device()


def set_device_index(device: Any, /) -> None:
    """Make a device the current one; it must have an index. A negative index changes nothing."""
    cuda.set_device(device)


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """Return `supported_dtypes`: the set of dtypes that tensors of a device may have. Initializes CUDA."""
    current.context_at(current.index_of(device, optional=True))
    return {"supported_dtypes": set(DTYPES)}


def current_device_idx() -> int:
    """Return the older name of `current_device_index`."""
    warnings.warn("Use `current_device_index` instead.", FutureWarning, stacklevel=2)
    return current_device_index()


def set_device_idx(device: Any, /) -> None:
    """Set the current device by the older name of `set_device_index`."""
    warnings.warn("Use `set_device_index` instead.", FutureWarning, stacklevel=2)
    set_device_index(device)


def set_stream(stream: Any) -> None:
    """Make a stream current, and its device with it."""
    cuda.set_stream(stream)


def synchronize(device: Any = None, /) -> None:
    """Wait for all that a device was given. Before CUDA's first use there is nothing to wait for."""
    if system.is_initialized():
        cuda.synchronize(device)


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """Return (free, total) bytes of a device's memory. Initializes CUDA."""
    return cuda.mem_get_info(device_index)


def empty_host_cache() -> None:
    """Give pinned memory that nothing occupies back to the system."""
    if system.is_initialized():
        system.pinned_allocator().empty_cache()


def get_device_module(device: Any = None) -> Any:
    """Return the module of a device's type, such as `torch.cuda`.

    Args:
        device: A device or its name; None for the current accelerator.

    Raises:
        RuntimeError: If PyTorch has no such module, or `device` is neither.
    """
    if device is not None and not isinstance(device, (str, _device)):
        raise RuntimeError(f"Invalid value of device '{device}', expect torch.device, str, or None")
    kind = ("cuda" if is_available() else "cpu") if device is None else _device(device).type
    if kind not in ("cpu", "cuda", "mps", "mtia", "xpu"):
        raise RuntimeError(
            f"Device '{kind}' does not have a corresponding module registered as 'torch.{kind}'."
        )
    return import_module(f"flambeau.{kind}")


class device_index:
    """A context manager that makes a device current, by its index; None changes nothing."""

    def __init__(self, device: int | None, /) -> None:
        self.idx = device
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx is not None:
            self.prev_idx = current.local.device
            cuda.set_device(self.idx)

    def __exit__(self, *error: object) -> None:
        if self.idx is not None:
            cuda.set_device(self.prev_idx)


publish(globals())
explain_absent_names(globals(), "torch.accelerator")
