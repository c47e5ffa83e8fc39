"""Checked calls of the CUDA driver API: a CUresult becomes an exception with CUDA's name for it."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import (
    DriverError,
    InvalidAddressError,
    NotReadyError,
    NotSupportedError,
    OutOfMemoryError,
    late,
)

NO_DEVICE = cu.CUresult.CUDA_ERROR_NO_DEVICE
INVALID_DEVICE = cu.CUresult.CUDA_ERROR_INVALID_DEVICE
NOT_READY = cu.CUresult.CUDA_ERROR_NOT_READY
OUT_OF_MEMORY = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY

# After one of these every call on the device fails until the process ends.
_STICKY = {
    getattr(cu.CUresult, f"CUDA_ERROR_{name}")
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_TIMEOUT", "ASSERT", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED", "ECC_UNCORRECTABLE",
        "TENSOR_MEMORY_LEAK", "EXTERNAL_DEVICE",
    )
    if hasattr(cu.CUresult, f"CUDA_ERROR_{name}")
}  # fmt: skip
_MEMORY = (cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, cu.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS)

_STICKY_TEXT = (
    "The error came from earlier work, not necessarily from this call; for the call that launched it, run with "
    "CUDA_LAUNCH_BLOCKING=1. The device's context is lost: every later call on it fails until this process ends."
)


def check(result: tuple[Any, ...]) -> Any:
    """Return the value of a call, or raise its error."""
    if result[0]:
        raise error_of(result[0])
    return result[1] if len(result) == 2 else result[1:]


def error_of(code: Any) -> Exception:
    """Return the exception for a CUresult, in PyTorch's words."""
    text = _text(cu.cuGetErrorString(code)) or "unknown error"
    name = _text(cu.cuGetErrorName(code)) or str(int(code))
    if code == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        return OutOfMemoryError(f"CUDA error: out of memory ({name})")
    if code in (cu.CUresult.CUDA_ERROR_NOT_SUPPORTED, cu.CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED):
        return NotSupportedError(f"CUDA error: {text} ({name})")
    if code in _STICKY:
        kind = InvalidAddressError if code in _MEMORY else DriverError
        return late(kind(f"CUDA error: {text} ({name})\n{_STICKY_TEXT}"))
    if code == NOT_READY:
        return NotReadyError(f"CUDA error: {text} ({name})")
    return DriverError(f"CUDA error: {text} ({name})")


def _text(result: tuple[Any, ...]) -> str:
    return result[1].decode() if not result[0] and result[1] else ""
