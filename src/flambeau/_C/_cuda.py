"""Names of `torch._C` that begin with `_cuda` or ask for switches: aliases of `torch.cuda` and `torch.backends`."""

# ruff: noqa: N802, N816 (PyTorch's names)

from __future__ import annotations

from flambeau import backends, cuda
from flambeau.cuda import devices, streams
from flambeau.runtime import current, system
from flambeau.runtime.streams.stream import Stream


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


def _cuda_setStream(stream_id: int, device_index: int, device_type: int) -> None:
    """Make a stream current, and its device, by the three numbers that `torch.cuda.Stream` shows."""
    if device_type != 1:
        raise RuntimeError(f"_cuda_setStream expects device_type=1, CUDA's, but got {device_type}")
    chosen = (
        cuda.get_stream_from_external(stream_id, device_index)  # here the native stream is the identifier
        if stream_id
        else cuda.default_stream(device_index)
    )
    cuda.set_device(device_index)
    cuda.set_stream(chosen)


def _cuda_getCurrentStream(device: int) -> tuple[int, int, int]:
    """Return `stream_id`, `device_index` and `device_type` of a device's current stream."""
    return _numbers(streams.current_stream(device))


def _cuda_getDefaultStream(device: int) -> tuple[int, int, int]:
    """Return `stream_id`, `device_index` and `device_type` of a device's default stream."""
    return _numbers(streams.default_stream(device))


def _cuda_getCurrentRawStream(device: int) -> int:
    """Return the cudaStream_t of a device's current stream."""
    return streams.current_stream(device).cuda_stream


def _cuda_exchangeDevice(device: int) -> int:
    """Make a device current, unless the index is negative, and return the index of the former one."""
    before = current.local.device if device < 0 else devices.current_device()
    if device >= 0:
        devices.set_device(device)
    return before


def _numbers(stream: Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


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
_cuda_sleep = streams._sleep


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
