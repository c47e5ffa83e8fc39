"""`Reserved`: reserved addresses of one device, parts of which are mapped to memory.

It uses the driver API's virtual-memory calls (https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). The
mapping names the devices that may access the memory, regardless of peer access between contexts.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda.bindings import driver as cu

from flambeau.core.errors import InvalidAddressError
from flambeau.driver.cuda.device.calls import check
from flambeau.driver.cuda.device.device import CudaDevice


class Reserved:
    """A reserved range of `nbytes` addresses that begins at `ptr`."""

    def __init__(self, device: CudaDevice, ptr: int, nbytes: int) -> None:
        self.device, self.ptr, self.nbytes = device, ptr, nbytes
        self._parts: dict[int, int] = {}  # address -> bytes of mapped memory

    def map(self, ptr: int, nbytes: int, devices: Sequence[CudaDevice]) -> None:
        """Map memory to a part of the range, accessible from these devices."""
        if any(start < ptr + nbytes and ptr < start + n for start, n in self._parts.items()):
            raise InvalidAddressError(f"range_map: {nbytes} bytes at {ptr:#x} have memory, or some of them")
        code, memory = cu.cuMemCreate(nbytes, _properties(self.device), 0)
        if code == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:  # the workspace pool may hold the missing memory
            self.device.pool.trim()
            code, memory = cu.cuMemCreate(nbytes, _properties(self.device), 0)
        check((code, memory))
        try:
            check(cu.cuMemMap(ptr, nbytes, 0, memory, 0))
        finally:
            check(cu.cuMemRelease(memory))  # the memory stays allocated while it is mapped
        try:
            _allow(ptr, nbytes, devices)
        except BaseException:
            cu.cuMemUnmap(ptr, nbytes)
            raise
        self._parts[ptr] = nbytes

    def allow(self, device: CudaDevice) -> None:
        """Let another device access all memory that is mapped at present."""
        for ptr, nbytes in self._parts.items():
            _allow(ptr, nbytes, [device])

    def unmap(self, ptr: int, nbytes: int) -> None:
        """Unmap and free the memory of adjacent parts."""
        parts = sorted(at for at in self._parts if ptr <= at < ptr + nbytes)
        if not parts or parts[0] != ptr or sum(self._parts[at] for at in parts) != nbytes:
            raise InvalidAddressError(
                f"range_unmap: {nbytes} bytes at {ptr:#x} are not what range_map put there"
            )
        for at in parts:
            check(cu.cuMemUnmap(at, self._parts[at]))
            del self._parts[at]

    def release(self, ptr: int) -> None:
        """Free the reserved range of addresses."""
        if ptr != self.ptr or self._parts:
            why = "has memory still" if self._parts else "is not the start of a reserved range"
            raise InvalidAddressError(f"range_release: {ptr:#x} {why}")
        check(cu.cuMemAddressFree(ptr, self.nbytes))

    def drop(self) -> None:
        """Unmap all memory and free the addresses, without reporting errors."""
        for at, nbytes in self._parts.items():
            cu.cuMemUnmap(at, nbytes)
        self._parts.clear()
        cu.cuMemAddressFree(self.ptr, self.nbytes)


def page_of(device: CudaDevice) -> int:
    """Return the granularity at which the device maps memory; 0 if it cannot map memory."""
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    if not check(cu.cuDeviceGetAttribute(attribute, device.handle)):
        return 0
    least = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(check(cu.cuMemGetAllocationGranularity(_properties(device), least)))


def _properties(device: CudaDevice) -> cu.CUmemAllocationProp:
    found = cu.CUmemAllocationProp()
    found.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.location = _place(device)
    return found


def _place(device: CudaDevice) -> cu.CUmemLocation:
    found = cu.CUmemLocation()
    found.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.id = int(device.handle)
    return found


def _allow(ptr: int, nbytes: int, devices: Sequence[CudaDevice]) -> None:
    wanted = []
    for device in devices:
        found = cu.CUmemAccessDesc()
        found.location = _place(device)
        found.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        wanted.append(found)
    check(cu.cuMemSetAccess(ptr, nbytes, wanted, len(wanted)))
