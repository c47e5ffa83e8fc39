"""`torch.cuda.cudart()`: some functions of the CUDA runtime library, under its names and with its error codes."""

# ruff: noqa: N802, N815 (CUDA's own names)

from __future__ import annotations

import ctypes
import enum
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import lacks
from flambeau.cuda import profiler
from flambeau.runtime import current, system

__all__ = ["CudaError", "DeferredCudaCallError", "check_error", "cudaStatus", "cudart"]


class cudaError(enum.IntEnum):
    """The error codes that programs compare with by name."""

    success = 0


class cudaStatus:
    """PyTorch's numbers of error codes."""

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


_WORDS = {
    0: "no error", 1: "invalid argument", 2: "out of memory", 3: "initialization error", 4: "driver shutting down",
    35: "CUDA driver version is insufficient for CUDA runtime version", 100: "no CUDA-capable device is detected",
    101: "invalid device ordinal", 201: "invalid device context", 400: "invalid resource handle",
    600: "device not ready", 700: "an illegal memory access was encountered", 704: "peer access is already enabled",
    709: "context is destroyed", 710: "device-side assert triggered", 719: "unspecified launch failure",
    801: "operation not supported", 900: "operation not permitted when stream is capturing", 999: "unknown error",
}  # fmt: skip


class _Runtime:
    """The functions of `cudart()`. Each returns an error code; other failures raise RuntimeError."""

    cudaError = cudaError
    __getattr__ = lacks

    def cudaGetErrorString(self, error: int) -> str:
        """Return the description of an error code."""
        return _WORDS.get(int(error), "unrecognized error code")

    def cudaMemGetInfo(self, device: Any) -> tuple[int, int]:
        """Return (free, total) bytes of a device's memory."""
        context = current.context_at(current.index_of(device, optional=True))
        return context.driver.mem_info(context.driver_index)

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> int:
        """Page-lock memory of the host that the program allocated: copies may then use it asynchronously.

        Args:
            ptr: Its address, such as `Tensor.data_ptr()` of a CPU tensor.
            size: Its size in bytes.
            flags: The sum of 1 (portable: always so) and 2 (mapped: always so), or 0.

        Raises:
            NotSupportedError: For other flags.
            RuntimeError: If the size is 0, or a part of the memory is page-locked already.
        """
        if flags & ~3:
            raise NotSupportedError(f"cudaHostRegister: flags 0 to 3 are supported, got {flags}")
        current.context_at(current.local.device).driver.host_register(ptr, size)
        return cudaError.success

    def cudaHostUnregister(self, ptr: int) -> int:
        """Undo `cudaHostRegister` of an address, after waiting for the work of all devices.

        Raises:
            RuntimeError: If it was not called with this address.
        """
        current.context_at(current.local.device).driver.host_unregister(ptr)
        return cudaError.success

    def cudaStreamCreate(self, ptr: int) -> int:
        """Create a nonblocking stream of the current device and write its cudaStream_t to `ptr`."""
        context = current.context_at(current.local.device)
        stream = context.driver.stream_create(context.driver_index, 0)
        ctypes.c_uint64.from_address(ptr).value = context.driver.stream_native(stream)
        return cudaError.success

    def cudaStreamDestroy(self, ptr: int) -> int:
        """Destroy a stream of the current device that `cudaStreamCreate` created."""
        context = current.context_at(current.local.device)
        context.driver.stream_destroy(context.driver.stream_adopt(context.driver_index, ptr))
        return cudaError.success

    def cudaProfilerStart(self) -> int:
        """Work like `torch.cuda.profiler.start`."""
        profiler.start()
        return cudaError.success

    def cudaProfilerStop(self) -> int:
        """Work like `torch.cuda.profiler.stop`."""
        profiler.stop()
        return cudaError.success


_runtime = _Runtime()


def cudart() -> _Runtime:
    """Return the CUDA runtime's calls. Initializes CUDA."""
    system.init()
    return _runtime


class CudaError(RuntimeError):
    """The error raised if a call of the CUDA runtime returns an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{_runtime.cudaGetErrorString(code)} ({code})")


class DeferredCudaCallError(Exception):
    """PyTorch's error for a deferred call that failed when CUDA was initialized. Flambeau never raises it.

    A deferred call that fails raises its own error.
    """


def check_error(res: int) -> None:
    """Raise CudaError unless a CUDA runtime call has returned success."""
    if res != cudaError.success:
        raise CudaError(res)
