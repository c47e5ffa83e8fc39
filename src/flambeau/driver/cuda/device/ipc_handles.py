"""IPC of real GPUs: cuIpc handles as 64 bytes.

A handle represents a whole allocation of cuMemAlloc. A process can open each handle once, and never its own handles.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.calls import check

NBYTES = 64
_LAZY_PEERS = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)


def memory_handle(ptr: int) -> bytes:
    """Return the IPC handle of the current context's allocation at `ptr`."""
    return _bytes_of(check(cu.cuIpcGetMemHandle(ptr)))


def open_memory(handle: bytes) -> tuple[int, int]:
    """Return the address of another process's allocation in the current context, and its bytes."""
    ptr = int(check(cu.cuIpcOpenMemHandle(_struct_of(cu.CUipcMemHandle(), handle), _LAZY_PEERS)))
    try:
        return ptr, int(check(cu.cuMemGetAddressRange(ptr))[1])
    except BaseException:
        cu.cuIpcCloseMemHandle(ptr)  # otherwise the handle stays open and cannot be opened again
        raise


def close_memory(ptr: int) -> None:
    check(cu.cuIpcCloseMemHandle(ptr))


def event_handle(native: Any) -> bytes:
    """Return the IPC handle of an event that was created for interprocess use."""
    return _bytes_of(check(cu.cuIpcGetEventHandle(native)))


def open_event(handle: bytes) -> Any:
    """Return another process's event, in the current context."""
    return check(cu.cuIpcOpenEventHandle(_struct_of(cu.CUipcEventHandle(), handle)))


def _bytes_of(handle: Any) -> bytes:
    return ctypes.string_at(int(handle.getPtr()), NBYTES)


def _struct_of(empty: Any, handle: bytes) -> Any:
    if len(handle) != NBYTES:
        raise DriverError(
            f"CUDA error: invalid argument: an IPC handle has {NBYTES} bytes, not {len(handle)}"
        )
    ctypes.memmove(int(empty.getPtr()), bytes(handle), NBYTES)
    return empty
