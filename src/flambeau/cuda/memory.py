"""`torch.cuda.memory`: statistics and settings of the caching allocator.

`device` is a torch.device, an int or a str; None, the default, is the current device. Sizes are in bytes. Functions
with a device raise RuntimeError if it does not exist, or ValueError if it is not a CUDA device.

Before CUDA is initialized, and without a GPU, every statistic is 0.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import get_ident
from typing import Any, cast

from flambeau.core.errors import NotSupportedError
from flambeau.core.files import replacing
from flambeau.core.public_names import explain_absent_names
from flambeau.runtime import current, system
from flambeau.runtime.graphs.mempool import MemPool, use_mem_pool
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import policy_of
from flambeau.runtime.memory.allocator_statistics import ALL, ALLOCATED_BYTES, RESERVED_BYTES
from flambeau.runtime.memory.history import Recording
from flambeau.runtime.memory.private_pool import NOBODY, as_id
from flambeau.runtime.memory.resources import DriverMemory, LibraryMemory, Resource, as_resource
from flambeau.runtime.memory_reports.snapshot import (  # imported here, because destructors use them at a program's end
    dump,
    snapshot,
)
from flambeau.runtime.memory_reports.summary import summary
from flambeau.runtime.streams.stream import Stream

__all__ = [
    "CUDAPluggableAllocator", "MemPool", "caching_allocator_alloc", "caching_allocator_delete",
    "caching_allocator_disabled", "caching_allocator_enable", "change_current_allocator", "empty_cache",
    "get_allocator_backend", "get_per_process_memory_fraction", "host_memory_stats",
    "host_memory_stats_as_nested_dict", "list_gpu_processes", "max_memory_allocated", "max_memory_cached",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached", "memory_reserved",
    "memory_snapshot", "memory_stats", "memory_stats_as_nested_dict", "memory_summary",
    "reset_accumulated_host_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_peak_host_memory_stats", "reset_peak_memory_stats", "reset_peak_stats",
    "set_per_process_memory_fraction", "use_mem_pool",
]  # fmt: skip

_MIB = 1 << 20
_ENABLED = (None, "state", "all")
_CONTEXTS = (None, "state", "alloc", "all")
_STACKS = ("python", "all")

explain_absent_names(globals(), "torch.cuda.memory")


def memory_allocated(device: Any = None) -> int:
    """Return bytes of the device's memory that tensors occupy now (each rounded up to 512).

    Raises:
        RuntimeError: If there is no such device.
    """
    return _allocator(device).allocated_bytes() if system.is_initialized() else 0


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes that tensors occupied, since the start or the last reset_peak_memory_stats.

    Raises:
        RuntimeError: If there is no such device.
    """
    return _allocator(device).ledger().peak[ALL][ALLOCATED_BYTES] if system.is_initialized() else 0


def memory_reserved(device: Any = None) -> int:
    """Return the bytes of device memory that the caching allocator holds now.

    Raises:
        RuntimeError: If there is no such device.
    """
    return _allocator(device).reserved_bytes() if system.is_initialized() else 0


def max_memory_reserved(device: Any = None) -> int:
    """Return the maximum of `memory_reserved`, in bytes, since the start or the last reset_peak_memory_stats.

    Raises:
        RuntimeError: If there is no such device.
    """
    return _allocator(device).ledger().peak[ALL][RESERVED_BYTES] if system.is_initialized() else 0


def memory_cached(device: Any = None) -> int:
    """Call `memory_reserved`, with a FutureWarning. Deprecated; see `memory_reserved`."""
    _warn_renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """Call `max_memory_reserved`, with a FutureWarning. Deprecated; see `max_memory_reserved`."""
    _warn_renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the figures of `memory_stats_as_nested_dict`, under "figure.pool.kind". Empty before first use.

    Raises:
        RuntimeError: If there is no such device.
    """
    flat: dict[str, int] = {}
    _flatten("", memory_stats_as_nested_dict(device), flat)
    return dict(sorted(flat.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return the exact statistics of the caching allocator as `[statistic][pool][kind]`; {} before first use.

    - Statistics: allocation (also as allocated, its documented name), allocated_bytes, requested_bytes, segment,
      reserved_bytes, active, active_bytes, inactive_split, inactive_split_bytes.
    - Pools: all, large_pool, small_pool. oversize_allocations and oversize_segments have no pools.
    - Kinds: current, peak, allocated (total increase), freed (total decrease).
    - max_split_size is one number, `sys.maxsize` if blocks of any size are split.
    - reserved_bytes_by_private_pools has the reserved bytes of each MemPool by its id.

    Raises:
        RuntimeError: If there is no such device.
    """
    if not system.is_initialized():
        return {}
    allocator = _allocator(device)
    figures: dict[str, Any] = allocator.ledger().figures()
    figures["allocated"] = figures["allocation"]
    return (
        figures
        | allocator.counters()
        | {
            "oversize_allocations": allocator.oversize_allocations.figures(),
            "oversize_segments": allocator.oversize_segments.figures(),
            "max_split_size": allocator.policy.max_split or sys.maxsize,
            "reserved_bytes_by_private_pools": allocator.private_statistics(),
        }
    )


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return PyTorch's table of the figures; abbreviated: a shorter one. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
    """
    system.init()
    return summary(memory_stats_as_nested_dict(device), _index(device), abbreviated)


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Return every segment of every device with its blocks, as in `_snapshot`; of one MemPool, if its id is given.

    Sizes are in bytes.

    Raises:
        TypeError: If it is not a pair of ints.
        ValueError: If no MemPool has such numbers.
    """
    id = NOBODY if mempool_id is None else as_id(mempool_id)
    return _whole(None if id == NOBODY else id, include_traces)["segments"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let all peaks start again from the current values. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
    """
    system.init()
    _allocator(device).reset_peaks()


def reset_peak_stats(device: Any = None) -> None:
    """Call `reset_peak_memory_stats`, under another documented name."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let total increases and decreases, and the counters of events, start again from 0. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
    """
    system.init()
    _allocator(device).reset_accumulated()


def reset_max_memory_allocated(device: Any = None) -> None:
    """Reset all peaks, as `reset_peak_memory_stats` does."""
    _warn_resets_all("reset_max_memory_allocated")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """Reset all peaks, as `reset_peak_memory_stats` does."""
    _warn_resets_all("reset_max_memory_cached")
    reset_peak_memory_stats(device)


def empty_cache() -> None:
    """Release all free cached memory to the devices. Memory of tensors is not affected.

    While a CUDA graph is captured this does nothing.
    """
    if system.is_initialized():
        for index in range(system.device_count()):
            _allocator(index).empty_cache()


def ipc_collect() -> None:
    """Release CUDA memory that other processes have finished with.

    Memory of tensors that were sent and are freed here stays allocated until then. The allocator also checks it
    whenever a tensor is sent or received, or memory runs out.
    """
    system.init()
    import_module("flambeau.runtime.devices.device_ipc").collect()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of the device's memory, as the driver sees it. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
    """
    context = current.context_at(_index(device))
    return context.driver.mem_info(context.driver_index)


def device_memory_used(device: Any = None) -> int:
    """Return the bytes of the device's memory that all processes use, as nvidia-smi shows them. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
    """
    free, total = mem_get_info(device)
    return total - free


def list_gpu_processes(device: Any = None) -> str:
    """Return text with the processes that use a device and their memory in MiB. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
        NotSupportedError: If the driver cannot list processes.
    """
    index = _index(device)
    context = current.context_at(index)
    lines = [
        f"process {pid:>10d} uses {nbytes / _MIB:>12.3f} MB GPU memory"
        for pid, nbytes in context.driver.mem_processes(context.driver_index)
    ]
    return "\n".join([f"GPU:{index}", *(lines or ["no processes are running"])])


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process reserve at most `fraction` (0 to 1) of the device's total memory. Initializes CUDA.
    Allocating more raises OutOfMemoryError.

    Raises:
        TypeError: For a value that is not a float.
        ValueError: If the fraction is not between 0 and 1.
    """
    system.init()
    allocator = _allocator(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    allocator.set_memory_fraction(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the fraction that `set_per_process_memory_fraction` set; 1.0 at first. Initializes CUDA.

    Raises:
        RuntimeError: If there is no such device.
    """
    system.init()
    return _allocator(device).memory_fraction


def get_allocator_backend() -> str:
    """Return "native" for the caching allocator, "pluggable" after `change_current_allocator`."""
    replaced = system.is_initialized() and _allocator(None).source.__class__ is not DriverMemory
    return "pluggable" if replaced else "native"


# -- pinned memory of the host ------------------------------------------------------------------------------------


def host_memory_stats() -> dict[str, int]:
    """Return the figures of `host_memory_stats_as_nested_dict`, under "figure.kind". Empty before first use."""
    flat: dict[str, int] = {}
    _flatten("", host_memory_stats_as_nested_dict(), flat)
    return dict(sorted(flat.items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return figures of pinned host memory: `[figure][kind]`, and plain counters.

    Figures: allocations and allocated_bytes (held, in use or kept), active_requests and active_bytes (in use).
    host_alloc_time and host_free_time are in microseconds.
    """
    return system.pinned_allocator().figures() if system.is_initialized() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Let total increases and decreases, and the counters, start again from 0."""
    if system.is_initialized():
        system.pinned_allocator().reset_accumulated()


def reset_peak_host_memory_stats() -> None:
    """Let peaks start again from the current values."""
    if system.is_initialized():
        system.pinned_allocator().reset_peaks()


# -- memory by address --------------------------------------------------------------------------------------------


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Allocate `size` bytes of the caching allocator on a stream (default: the current one) and return their address.

    `caching_allocator_delete` frees them.

    Raises:
        TypeError: If the size is not an int, or the stream is neither a Stream nor an int.
        RuntimeError: If the device does not exist.
        OutOfMemoryError: If the memory is exhausted, or the size is negative, as in PyTorch.
    """
    size = operator.index(size)
    size = size if size >= 0 else 1 << 63
    context = current.context_at(_index(device))
    if stream is None:
        stream = current.stream_at(context.index)
    elif isinstance(stream, int):
        stream = Stream(context.index, stream_ptr=stream)
    elif not isinstance(stream, Stream):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.cuda.Stream` or `int` representing a pointer to a "
            "existing stream"
        )
    return cast(CachingAllocator, context.allocator).allocate_raw(size, stream)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free memory that `caching_allocator_alloc` returned.

    Raises:
        RuntimeError: If it did not return this address.
        TypeError: If this is not an address.
    """
    mem_ptr = operator.index(mem_ptr)
    if mem_ptr and not any(_allocator(i).free_raw(mem_ptr) for i in range(system.device_count())):
        raise RuntimeError(f"invalid device pointer: {mem_ptr:#x}")


def caching_allocator_enable(value: bool = True) -> None:
    """Enable or disable caching: when disabled, each block returns to the device as it is freed. Initializes CUDA.

    Raises:
        RuntimeError: If there is no GPU.
    """
    for context in system.contexts():
        cast(CachingAllocator, context.allocator).set_caching(bool(value))


@contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Return `caching_allocator_enable(False)` inside of a `with` block."""
    before = [_allocator(i).policy.caching for i in range(len(system.contexts()))]
    caching_allocator_enable(False)
    try:
        yield
    finally:
        for i, caching in enumerate(before):
            _allocator(i).set_caching(caching)


# -- other sources of memory --------------------------------------------------------------------------------------


class CUDAPluggableAllocator:
    """A source of memory that can replace the caching allocator, or serve a MemPool.

    Args:
        path_to_so_file: A shared library (real GPUs only), or an object with `allocate` and `free`: see
            `flambeau.runtime.memory.resources`, whose Limited, Logged, Counted and Failing wrap another.
        alloc_fn_name: Name of its `void* f(ssize_t size, int device, cudaStream_t stream)`.
        free_fn_name: Name of its `void f(void* ptr, ssize_t size, int device, cudaStream_t stream)`.

    Raises:
        OSError: If the library does not exist.
        AttributeError: If it lacks a function.
        TypeError: If the object lacks `allocate` or `free`.
    """

    def __init__(self, path_to_so_file: Any, alloc_fn_name: str = "", free_fn_name: str = "") -> None:
        if isinstance(path_to_so_file, str):
            self._allocator: Resource = LibraryMemory(path_to_so_file, alloc_fn_name, free_fn_name)
        else:
            self._allocator = as_resource(path_to_so_file)

    def allocator(self) -> Resource:
        """Return the source itself, as MemPool takes it."""
        return self._allocator


def change_current_allocator(allocator: CUDAPluggableAllocator) -> None:
    """Use `allocator` for the memory of all tensors from now on, on all devices. Initializes CUDA.

    Raises:
        RuntimeError: If memory was allocated already; nothing has changed then.
    """
    found = [cast(CachingAllocator, context.allocator) for context in system.contexts()]
    if any(one.num_device_alloc for one in found):
        raise RuntimeError("Can't swap an already initialized allocator")
    for one in found:
        one.replace(allocator.allocator())


# -- history ------------------------------------------------------------------------------------------------------


def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
    """Record call sites and times of allocations from now on, on all devices. `enabled=None` stops recording.

    A short history without stacks is always stored.

    Args:
        enabled: "all" (default: live memory, and a history of all requests), "state" (live memory only), None.
        *args, **kwargs: `context`, the events whose stacks are stored: "all" (default), "alloc", "state" (all except
            frees), None. `stacks`: "all" (default) or "python", which are equal, because Flambeau has only Python
            frames. `max_entries`: the number of events in the history (default: all). `clear_history`: drop earlier
            events. `global_record_annotations`: store ranges (`record_function`) of all threads, not only of the
            calling one. `skip_actions`: kinds of events that snapshots omit.

    Raises:
        RuntimeError: If a value is unknown.
    """
    if isinstance(enabled, bool):
        _record_as_before(enabled, *args, **kwargs)
    else:
        _record(enabled, *args, **kwargs)


def _record(
    enabled: str | None,
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Any = None,
) -> None:
    if enabled not in _ENABLED:
        raise RuntimeError(f"expected enabled to be None, 'state', or 'all', not {enabled!r}")
    if context not in _CONTEXTS:
        raise RuntimeError(f"expected context to be None, 'state', 'alloc', or 'all', not {context!r}")
    if stacks not in _STACKS:
        raise RuntimeError(f"expected stacks to be 'python', or 'all', not {stacks!r}")
    if operator.index(max_entries) < 0:
        raise TypeError(f"max_entries must not be negative, but is {max_entries}")
    contexts = system.contexts()
    before = cast(CachingAllocator, contexts[0].allocator).recording
    if enabled is None and before is None:
        return
    replace = import_module("flambeau.runtime.memory_reports.memory_metadata").replace  # few programs record
    thread = None if global_record_annotations else get_ident()
    labels = replace(before, clear_history, None if enabled is None else (contexts, max_entries, thread))
    for one in contexts:
        recording = None
        if enabled is not None:
            skip = skip_actions or ()
            recording = Recording(enabled, context, max_entries, clear_history, skip, one.clock)
            recording.labels = labels
        cast(CachingAllocator, one.allocator).record(recording)


def _record_as_before(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: Any = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Any = None,
) -> None:
    """Start or stop a recording with the arguments of PyTorch 2.0, and those added later."""
    context = ("all" if trace_alloc_record_context else "state") if record_context else None
    _record(
        "all" if enabled else None,
        context,
        max_entries=trace_alloc_max_entries,
        clear_history=clear_history,
        global_record_annotations=global_record_annotations,
        skip_actions=skip_actions,
    )


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return the state and the history of all devices' allocators, as PyTorch's memory viewer reads them.

    Raises NotSupportedError for traces of torch.fx, which Flambeau lacks.
    """
    _refuse_fx(augment_with_fx_traces)
    return _whole(None, True)


def _dump_snapshot(filename: Any = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Write `_snapshot()` to a file: a pickle, for PyTorch's memory viewer and for `flambeau memory`."""
    _refuse_fx(augment_with_fx_traces)
    found = dump(_allocators())
    with replacing(filename) as file:
        file.writelines(found)


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """Return the stack that allocated the memory at an address; None if it was not recorded or is not in use."""
    for context in system.contexts():
        frames = cast(CachingAllocator, context.allocator).frames_at(data_ptr)
        if frames is not None:
            return frames
    return None


def _set_allocator_settings(env: str) -> None:
    """Change the settings of the allocators; `env` has the format of PYTORCH_ALLOC_CONF.

    Raises:
        TypeError: If the value is not a str.
        ValueError: If it is malformed.
    """
    if not isinstance(env, str):
        raise TypeError(f"_set_allocator_settings(): argument 'env' must be str, not {type(env).__name__}")
    policy = policy_of(env)
    for context in system.contexts():
        cast(CachingAllocator, context.allocator).set_policy(policy)
    system.pinned_allocator().keep_at_most(policy.pinned_cap)


def _whole(pool: Any, traces: bool) -> dict[str, Any]:
    return snapshot(_allocators(), pool, traces)


def _allocators() -> list[CachingAllocator]:
    """Return the allocators of all devices; an empty list before devices are opened."""
    contexts = system.contexts() if system.is_initialized() else ()
    return [cast(CachingAllocator, context.allocator) for context in contexts]


def _refuse_fx(augment: bool) -> None:
    if augment:
        raise NotSupportedError("augment_with_fx_traces: Flambeau has no torch.fx")


def _index(device: Any) -> int:
    return current.local.device if device is None else current.index_of(device, optional=True)


def _allocator(device: Any) -> CachingAllocator:
    return cast(CachingAllocator, current.context_at(_index(device)).allocator)


def _flatten(prefix: str, value: Any, into: dict[str, int]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            name = "_".join(map(str, key)) if isinstance(key, tuple) else key
            _flatten(f"{prefix}.{name}" if prefix else name, part, into)
    else:
        into[prefix] = value


def _warn_renamed(old: str, new: str) -> None:
    text = f"`torch.cuda.{old}` has been renamed to `torch.cuda.{new}`"
    warnings.warn(text, FutureWarning, stacklevel=3)


def _warn_resets_all(name: str) -> None:
    calls = "torch.cuda.reset_peak_memory_stats, which resets /all/ peak memory stats."
    warnings.warn(f"torch.cuda.{name} now calls {calls}", FutureWarning, stacklevel=3)
