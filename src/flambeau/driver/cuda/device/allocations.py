"""`CudaAllocations`: memory that the driver allocated on devices and the host, or opened from other processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError, InvalidAddressError, NotSupportedError
from flambeau.driver.cuda.device import ipc_handles
from flambeau.driver.cuda.device.calls import OUT_OF_MEMORY, check, error_of
from flambeau.driver.cuda.device.contexts import Contexts
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.virtual_memory import Reserved, page_of
from flambeau.driver.protocol import HostMemory

_MEMORY_TYPE = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_RANGE_START = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
_RANGE_SIZE = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE
_PORTABLE = int(cu.CU_MEMHOSTALLOC_PORTABLE)
_REGISTER_PORTABLE = int(cu.CU_MEMHOSTREGISTER_PORTABLE)


class CudaAllocations:
    """The tables of allocated memory by address. Freeing waits for the device first.

    Args:
        uncaptured: Returns a context manager inside which driver calls are not captured.
    """

    def __init__(self, contexts: Contexts, uncaptured: Callable[[], AbstractContextManager[None]]) -> None:
        self._contexts, self._outside_capture = contexts, uncaptured
        self._memory: dict[int, CudaDevice] = {}
        self._ranges: dict[int, Reserved] = {}  # first address -> reserved range
        self._reach: set[tuple[int, int]] = set()  # (device, peer whose memory it can access)
        self._opened: dict[int, CudaDevice] = {}  # address of another process's memory -> device
        self._pinned: dict[int, int] = {}
        self._registered: dict[int, int] = {}  # address of the program's page-locked memory -> bytes

    def clear(self) -> None:
        """Forget all memory without freeing it: its devices have been closed."""
        for table in (self._memory, self._ranges, self._opened, self._pinned, self._registered):
            table.clear()

    def drop(self, device: CudaDevice) -> None:
        """Free all memory of a device whose context is current. Errors are ignored."""
        for ptr in [p for p, owner in self._memory.items() if owner is device]:
            cu.cuMemFree(ptr)
        for ptr in [p for p, owner in self._opened.items() if owner is device]:
            cu.cuIpcCloseMemHandle(ptr)
        for ptr in self._pinned:
            cu.cuMemFreeHost(ptr)
        for ptr in self._registered:
            cu.cuMemHostUnregister(ptr)
        self._pinned.clear()
        self._registered.clear()
        for held in self._ranges.values():
            if held.device is device:
                held.drop()

    # -- of a device --------------------------------------------------------------------------------------
    def allocate(self, index: int, nbytes: int) -> int:
        device = self._contexts.device(index)
        if nbytes < 0:
            raise DriverError(f"mem_alloc: the size must not be negative, got {nbytes}")
        self._contexts.enter(device)
        with self._outside_capture():
            code, ptr = cu.cuMemAlloc(max(nbytes, 1))
            if code == OUT_OF_MEMORY:  # the workspace pool may hold the missing memory
                device.pool.trim()
                code, ptr = cu.cuMemAlloc(max(nbytes, 1))
        ptr = int(check((code, ptr)))
        self._memory[ptr] = device
        return ptr

    def free(self, ptr: int) -> None:
        device = self._memory.get(ptr)
        if device is None:
            self._refuse(f"mem_free: {ptr:#x} was not allocated by this driver, or freed already")
        self._contexts.settle(device)
        check(cu.cuMemFree(ptr))
        del self._memory[ptr]

    def _refuse(self, why: str) -> NoReturn:
        self._contexts.check_open()
        raise InvalidAddressError(why)

    # -- addresses, and what is behind them ---------------------------------------------------------------
    def reserve(self, index: int, nbytes: int) -> int:
        device = self._contexts.device(index)
        page = page_of(device)
        if not page:
            raise NotSupportedError(f"cuda:{index} has no virtual-memory calls")
        if nbytes <= 0 or nbytes % page:
            raise DriverError(f"range_reserve: {nbytes} bytes are not whole pages of {page} bytes")
        self._contexts.enter(device)
        ptr = int(check(cu.cuMemAddressReserve(nbytes, 0, 0, 0)))
        self._ranges[ptr] = Reserved(device, ptr, nbytes)
        return ptr

    def map(self, ptr: int, nbytes: int) -> None:
        held = self._find_reserved("range_map", ptr, nbytes)
        self._contexts.enter(held.device)
        others = [self._contexts.devices[i] for i, peer in self._reach if peer == held.device.index]
        with self._outside_capture():
            held.map(ptr, nbytes, [held.device, *others])

    def unmap(self, ptr: int, nbytes: int) -> None:
        held = self._find_reserved("range_unmap", ptr, nbytes)
        self._contexts.settle(held.device)
        held.unmap(ptr, nbytes)

    def unreserve(self, ptr: int) -> None:
        held = self._find_reserved("range_release", ptr, 0)
        self._contexts.enter(held.device)
        held.release(ptr)
        del self._ranges[ptr]

    def _find_reserved(self, what: str, ptr: int, nbytes: int) -> Reserved:
        for held in self._ranges.values():
            if held.ptr <= ptr and ptr + nbytes <= held.ptr + held.nbytes:
                return held
        self._contexts.check_open()
        if not any(page_of(device) for device in self._contexts.devices):
            raise NotSupportedError(f"{what}: these GPUs have no virtual-memory calls")
        raise InvalidAddressError(f"{what}: {nbytes} bytes at {ptr:#x} were not reserved by this driver")

    # -- of the host --------------------------------------------------------------------------------------
    def allocate_host(self, nbytes: int) -> HostMemory:
        self._contexts.enter(self._contexts.device(0))
        with self._outside_capture():
            ptr = int(check(cu.cuMemHostAlloc(max(nbytes, 1), _PORTABLE)))
        self._pinned[ptr] = nbytes
        return HostMemory(ptr, nbytes, None, pinned=True)

    def free_host(self, memory: HostMemory) -> None:
        if memory.ptr not in self._pinned:
            self._refuse(f"host_free: {memory.ptr:#x} was not allocated by this driver, or freed already")
        self._settle_all()
        check(cu.cuMemFreeHost(memory.ptr))
        del self._pinned[memory.ptr]

    def register_host(self, ptr: int, nbytes: int) -> None:
        self._contexts.enter(self._contexts.device(0))
        with self._outside_capture():
            check(cu.cuMemHostRegister(ptr, nbytes, _REGISTER_PORTABLE))
        self._registered[ptr] = nbytes

    def unregister_host(self, ptr: int) -> int:
        if ptr not in self._registered:
            self._refuse(f"host_unregister: {ptr:#x} is not the start of memory that was registered")
        self._settle_all()
        check(cu.cuMemHostUnregister(ptr))
        return self._registered.pop(ptr)

    def _settle_all(self) -> None:
        for device in self._contexts.devices:
            if device.context is not None:
                self._contexts.settle(device)
        self._contexts.enter_at(0)

    def is_pinned(self, ptr: int, nbytes: int) -> bool:
        """Return True if the range is not empty and all of it is page-locked, by any library, as CUDA reports."""
        self._contexts.check_open()
        if not self._contexts.thread.entered:
            self._contexts.enter_at(0)
        at, end = ptr, ptr + nbytes
        while at < end and _is_host(at):
            (no_start, start), (no_size, size) = (
                cu.cuPointerGetAttribute(what, at) for what in (_RANGE_START, _RANGE_SIZE)
            )
            # CUDA does not report the range, so check the last byte
            if no_start or no_size or int(start) + size <= at:
                return _is_host(end - 1)
            at = int(start) + size
        return ptr < end <= at

    # -- of other processes -------------------------------------------------------------------------------
    def export(self, ptr: int) -> bytes:
        """Return a handle with which other processes can open the memory."""
        device = self._memory.get(ptr)
        if device is None:
            self._refuse(f"ipc_memory: {ptr:#x} was not allocated by this driver, or freed already")
        self._contexts.enter(device)
        return ipc_handles.memory_handle(ptr)

    def open(self, index: int, handle: bytes) -> tuple[int, int]:
        """Open another process's memory. Returns its address and size in bytes."""
        device = self._contexts.device(index)
        self._contexts.enter(device)
        ptr, nbytes = ipc_handles.open_memory(handle)
        self._opened[ptr] = device
        return ptr, nbytes

    def close(self, ptr: int) -> None:
        """Close memory that `open` mapped from another process."""
        device = self._opened.get(ptr)
        if device is None:
            self._refuse(f"ipc_close: {ptr:#x} is not another process's memory, or closed already")
        self._contexts.settle(device)
        ipc_handles.close_memory(ptr)
        del self._opened[ptr]

    # -- of peers -----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        """Return True if a device can reach a peer's memory."""
        a, b = self._contexts.device(index), self._contexts.device(peer)
        return a is not b and bool(check(cu.cuDeviceCanAccessPeer(a.handle, b.handle)))

    def peer_enable(self, index: int, peer: int) -> None:
        """Let the device access the peer's memory."""
        if not self.peer_can(index, peer):
            raise NotSupportedError(f"device {index} cannot reach the memory of device {peer} directly")
        device, other = self._contexts.devices[index], self._contexts.devices[peer]
        self._contexts.enter(device)
        (code,) = cu.cuCtxEnablePeerAccess(other.open(), 0)
        if code and code != cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
            raise error_of(code)
        self._reach.add((index, peer))
        for held in self._ranges.values():
            if held.device is other:
                held.allow(device)


def _is_host(ptr: int) -> bool:
    """Return True if CUDA reports an address as page-locked host memory. It returns an error for pageable memory."""
    code, kind = cu.cuPointerGetAttribute(_MEMORY_TYPE, ptr)
    return not code and kind == cu.CUmemorytype.CU_MEMORYTYPE_HOST
