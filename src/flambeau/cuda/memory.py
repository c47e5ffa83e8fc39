"""`torch.cuda.memory`: figures of the caching allocator, and what a program may ask of it.

`device` is a torch.device, an int or a str; None, the default, is the current device. Sizes are in bytes.
Before CUDA is initialized, and without a GPU, every figure is 0.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

from flambeau.core.names import lacking
from flambeau.runtime import current, system
from flambeau.runtime.allocator import COUNTERS, CachingAllocator
from flambeau.runtime.statistics import ALL, ALLOCATED_BYTES, RESERVED_BYTES

__all__ = [
    "empty_cache", "get_allocator_backend", "get_per_process_memory_fraction", "max_memory_allocated",
    "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached",
    "memory_reserved", "memory_stats", "memory_stats_as_nested_dict", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]  # fmt: skip

__getattr__ = lacking("torch.cuda.memory")


def memory_allocated(device: Any = None) -> int:
    """Bytes of the device's memory that tensors occupy now (each rounded up to 512)."""
    return _allocator(device).allocated_bytes() if system.is_initialized() else 0


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors occupied, since the start or the last reset_peak_memory_stats."""
    return _allocator(device).ledger().peak[ALL][ALLOCATED_BYTES] if system.is_initialized() else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that the caching allocator holds of the device's memory now."""
    return _allocator(device).reserved_bytes() if system.is_initialized() else 0


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the caching allocator held, since the start or the last reset_peak_memory_stats."""
    return _allocator(device).ledger().peak[ALL][RESERVED_BYTES] if system.is_initialized() else 0


def memory_cached(device: Any = None) -> int:
    """Deprecated; see `memory_reserved`."""
    _warn_renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """Deprecated; see `max_memory_reserved`."""
    _warn_renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def memory_stats(device: Any = None) -> dict[str, int]:
    """The figures of `memory_stats_as_nested_dict`, under "figure.pool.kind". Empty before first use."""
    flat: dict[str, int] = {}
    _flatten("", memory_stats_as_nested_dict(device), flat)
    return dict(sorted(flat.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Exact figures of the caching allocator: `[figure][pool][kind]`, and plain counters.

    Figures: allocation (also as allocated, its documented name), allocated_bytes, requested_bytes,
    segment, reserved_bytes, active, active_bytes, inactive_split, inactive_split_bytes. Pools: all,
    large_pool, small_pool. Kinds: current, peak, allocated (total increase), freed (total decrease).
    """
    if not system.is_initialized():
        return {}
    allocator = _allocator(device)
    figures: dict[str, Any] = allocator.ledger().figures()
    figures["allocated"] = figures["allocation"]
    return figures | {name: getattr(allocator, name) for name in COUNTERS}


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let all peaks start again from the current values. Initializes CUDA."""
    system.init()
    _allocator(device).reset_peaks()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let total increases and decreases, and the counters of events, start again from 0. Initializes CUDA."""
    system.init()
    _allocator(device).reset_accumulated()


def reset_max_memory_allocated(device: Any = None) -> None:
    """Calls `reset_peak_memory_stats`, which resets all peaks."""
    _warn_resets_all("reset_max_memory_allocated")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """Calls `reset_peak_memory_stats`, which resets all peaks."""
    _warn_resets_all("reset_max_memory_cached")
    reset_peak_memory_stats(device)


def empty_cache() -> None:
    """Give cached memory that nothing occupies back to every device. What tensors occupy stays."""
    if system.is_initialized():
        for index in range(system.device_count()):
            _allocator(index).empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device's memory, as the driver sees it. Initializes CUDA."""
    context = current.context_at(_index(device))
    return context.driver.mem_info(context.driver_index)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process reserve at most `fraction` (0 to 1) of the device's total memory. Initializes CUDA.

    Raises TypeError: not a float; ValueError: not between 0 and 1. Allocating more raises OutOfMemoryError.
    """
    system.init()
    allocator = _allocator(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    allocator.set_memory_fraction(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The fraction that `set_per_process_memory_fraction` set; 1.0 at first. Initializes CUDA."""
    system.init()
    return _allocator(device).memory_fraction


def get_allocator_backend() -> str:
    """ "native": the caching allocator."""
    return "native"


def _index(device: Any) -> int:
    return current.local.device if device is None else current.index_of(device, optional=True)


def _allocator(device: Any) -> CachingAllocator:
    return cast(CachingAllocator, current.context_at(_index(device)).allocator)


def _flatten(prefix: str, value: Any, into: dict[str, int]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _flatten(f"{prefix}.{key}" if prefix else key, part, into)
    else:
        into[prefix] = value


def _warn_renamed(old: str, new: str) -> None:
    text = f"`torch.cuda.{old}` has been renamed to `torch.cuda.{new}`"
    warnings.warn(text, FutureWarning, stacklevel=3)


def _warn_resets_all(name: str) -> None:
    calls = "torch.cuda.reset_peak_memory_stats, which resets /all/ peak memory stats."
    warnings.warn(f"torch.cuda.{name} now calls {calls}", FutureWarning, stacklevel=3)
