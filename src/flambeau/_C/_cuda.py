"""Names of `torch._C` that begin with `_cuda` or ask for switches: aliases of `torch.cuda` and `torch.backends`."""

# ruff: noqa: N802, N816 (PyTorch's names)

from __future__ import annotations

from flambeau import backends, cuda
from flambeau.cuda import initialization, memory, streams
from flambeau.runtime import system
from flambeau.runtime.streams.stream import Stream
from flambeau.version import cuda as cuda_version


def _cuda_hasPrimaryContext(device: int) -> bool:
    """Return True if CUDA is initialized, which opens the contexts of all devices.

    Args:
        device: The index of a device.

    Raises:
        RuntimeError: If there is no such device.
    """
    if not 0 <= device < system.device_count():
        raise RuntimeError(f"hasPrimaryContext expects a valid device index, but got device_index={device}")
    return system.is_initialized()


def _cuda_getCurrentStream(device: int) -> tuple[int, int, int]:
    """Return `stream_id`, `device_index` and `device_type` of a device's current stream."""
    return _numbers(streams.current_stream(device))


def _cuda_getDefaultStream(device: int) -> tuple[int, int, int]:
    """Return `stream_id`, `device_index` and `device_type` of a device's default stream."""
    return _numbers(streams.default_stream(device))


def _cuda_getCurrentRawStream(device: int) -> int:
    """Return the cudaStream_t of a device's current stream."""
    return streams.current_stream(device).cuda_stream


def _cuda_getCompiledVersion() -> int:
    """Return the CUDA version of `torch.version.cuda` as a number: 13000 for 13.0."""
    major, minor = str(cuda_version).split(".")[:2]
    return 1000 * int(major) + 10 * int(minor)


def _cuda_getArchFlags() -> str:
    """Return the architectures of `torch.cuda.get_arch_list`, separated by spaces."""
    return " ".join(cuda.get_arch_list())


def _cuda_isHistoryEnabled() -> bool:
    """Return True if `torch.cuda.memory._record_memory_history` is on."""
    return any(allocator.recording is not None for allocator in memory._allocators())


def _cuda_clearCublasWorkspaces() -> None:
    """Initialize CUDA and release nothing: the caching allocator has no workspaces of cuBLAS.

    The driver keeps a workspace for each stream, which `memory_allocated` does not count.
    """
    system.init()


def _cuda_cudaCachingAllocator_is_enabled() -> bool:
    """Return False after `caching_allocator_enable(False)`."""
    return all(allocator.policy.caching for allocator in memory._allocators())


def _cuda_cudaCachingAllocator_raw_alloc(size: int, stream: int) -> int:
    """Call `torch.cuda.caching_allocator_alloc` for the current device; `stream` is a cudaStream_t."""
    return cuda.caching_allocator_alloc(size, None, stream)


def _numbers(stream: Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


_cuda_isInBadFork = system.is_forked
_cuda_getDevice, _cuda_setDevice = cuda.current_device, cuda.set_device
_cuda_getDeviceCount = cuda.device_count
_cuda_init, _cuda_synchronize = cuda.init, cuda.synchronize
_cuda_emptyCache, _cuda_ipc_collect = cuda.empty_cache, cuda.ipc_collect
_cuda_memoryStats, _cuda_memorySnapshot = cuda.memory_stats_as_nested_dict, cuda.memory_snapshot
_cuda_resetPeakMemoryStats = cuda.reset_peak_memory_stats
_cuda_resetAccumulatedMemoryStats = cuda.reset_accumulated_memory_stats
_cuda_getAllocatorBackend = cuda.get_allocator_backend
_cuda_canDeviceAccessPeer = cuda.can_device_access_peer
_cuda_getCurrentBlasHandle = cuda.current_blas_handle
_cuda_isCurrentStreamCapturing = cuda.is_current_stream_capturing
_cuda_setStream = initialization._set_stream_by_id
_cuda_exchangeDevice = _cuda_maybeExchangeDevice = initialization._exchange_device
_cuda_getMemoryFraction = cuda.get_per_process_memory_fraction
_cuda_setMemoryFraction = cuda.set_per_process_memory_fraction
_cuda_getCurrentSolverHandle = cuda.current_solver_handle
_cuda_getStreamFromExternal = cuda.get_stream_from_external
_cuda_hostMemoryStats = cuda.host_memory_stats_as_nested_dict
_cuda_resetPeakHostMemoryStats = cuda.reset_peak_host_memory_stats
_cuda_resetAccumulatedHostMemoryStats = cuda.reset_accumulated_host_memory_stats
_cuda_set_sync_debug_mode, _cuda_get_sync_debug_mode = cuda.set_sync_debug_mode, cuda.get_sync_debug_mode
_cuda_changeCurrentAllocator = cuda.change_current_allocator
_cuda_cudaCachingAllocator_raw_delete = cuda.caching_allocator_delete
_cuda_cudaCachingAllocator_enable = cuda.caching_allocator_enable
_cuda_record_memory_history = memory._record_memory_history
_cuda_sleep = streams._sleep
_CudaStreamBase, _CudaEventBase = streams.Stream, streams.Event


def _get_cublas_allow_tf32() -> bool:
    """Return `torch.backends.cuda.matmul.allow_tf32`."""
    return bool(backends.cuda.matmul.allow_tf32)


def _set_cublas_allow_tf32(allowed: bool) -> None:
    """Set `torch.backends.cuda.matmul.allow_tf32`."""
    backends.cuda.matmul.allow_tf32 = allowed


def _get_cudnn_allow_tf32() -> bool:
    """Return `torch.backends.cudnn.allow_tf32`."""
    return bool(backends.cudnn.allow_tf32)


def _set_cudnn_allow_tf32(allowed: bool) -> None:
    """Set `torch.backends.cudnn.allow_tf32`."""
    backends.cudnn.allow_tf32 = allowed
