"""`CudaDevice`: one GPU's properties, its primary context, and the working memory of its streams."""

from __future__ import annotations

import ctypes
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.assertions import Assertions
from flambeau.driver.cuda.device.calls import check
from flambeau.driver.cuda.device.workspaces import Workspaces
from flambeau.driver.protocol import DeviceProperties

if TYPE_CHECKING:
    from flambeau.driver.cuda.device.capture import CudaCapture

_A = cu.CUdevice_attribute
_ATTRIBUTES = {
    "major": _A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    "minor": _A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    "multi_processor_count": _A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    "max_threads_per_multi_processor": _A.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    "warp_size": _A.CU_DEVICE_ATTRIBUTE_WARP_SIZE,
    "regs_per_multiprocessor": _A.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
    "shared_memory_per_block": _A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
    "shared_memory_per_multiprocessor": _A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    "L2_cache_size": _A.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    "clock_rate": _A.CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
    "is_integrated": _A.CU_DEVICE_ATTRIBUTE_INTEGRATED,
    "is_multi_gpu_board": _A.CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD,
    "pci_bus_id": _A.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
    "pci_device_id": _A.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    "pci_domain_id": _A.CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
}


class CudaDevice:
    """A GPU.

    Attributes:
        context: Its primary context, which other libraries share; None until `open` retains it.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = check(cu.cuDeviceGet(index))
        self.properties = self._properties()
        self.capability = (self.properties.major, self.properties.minor)
        # on Grace systems CPU and GPU share page tables, so copies from pageable memory are not staged
        self.reads_pageable = bool(
            self._attribute(_A.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
        )
        self.context: Any = None
        self._scratch: dict[int, tuple[int, int]] = {}  # stream handle -> address, bytes
        # stream handle -> addresses of scratch memory that was too small
        self._outgrown: dict[int, list[int]] = {}
        self.captures: dict[
            int, CudaCapture
        ] = {}  # captured stream handle -> capture, see Note [What a graph keeps]
        self.assertions = Assertions()
        self.pool = Workspaces(index, self.captures)
        self.take, self.give = self.pool.take, self.pool.give
        self.blas: Any = None  # the handle of cuBLASLt, created for the first product
        self.libraries: dict[str, Any] = {}  # handles of other libraries, by name, once they are asked for
        self._workspaces: dict[
            int, tuple[Any, Any]
        ] = {}  # stream handle -> a library's workspace, the stream

    def open(self) -> Any:
        if self.context is None:
            self.context = check(cu.cuDevicePrimaryCtxRetain(self.handle))
        return self.context

    def scratch_of(self, stream: int, nbytes: int, native: Any) -> int:
        """Return at least `nbytes` bytes of scratch memory that successive kernels of the stream share. New memory is
        zeroed.
        """
        if stream in self.captures:
            return self.captures[stream].scratch_of(stream, nbytes)
        ptr, size = self._scratch.get(stream, (0, 0))
        if size < nbytes:
            size = max(nbytes, 2 * size, 1 << 20)
            fresh = int(check(cu.cuMemAllocAsync(size, native)))
            check(cu.cuMemsetD8Async(fresh, 0, size, native))
            if ptr:  # keep the old memory: another thread's launch may use it later
                self._outgrown.setdefault(stream, []).append(ptr)
            ptr = fresh
            self._scratch[stream] = (ptr, size)
        return ptr

    def drop_scratch(self, stream: int, native: Any) -> None:
        ptr, _ = self._scratch.pop(stream, (0, 0))
        for held in (*self._outgrown.pop(stream, []), ptr):
            if held:
                cu.cuMemFreeAsync(held, native)
        workspace = self._workspaces.pop(stream, None)
        if workspace is not None:
            self.pool.give(workspace[0].value, native)
        self.pool.forget(native)

    def workspace_of(self, stream: int, nbytes: int, native: Any) -> tuple[Any, Any]:
        """Return (address, stream) as ctypes values: memory that successive library calls on the stream share.

        `nbytes` must be equal at each call.
        """
        if stream in self.captures:
            return self.captures[stream].workspace_of(stream, nbytes, native)
        found = self._workspaces.get(stream)
        if found is None:
            made = (ctypes.c_void_p(self.take(nbytes, native)), ctypes.c_void_p(int(native)))
            found = self._workspaces.setdefault(stream, made)
            if found is not made:  # another thread has created it meanwhile
                self.give(made[0].value or 0, native)
        return found

    def close_pool(self) -> None:
        self.pool.close()
        for library in (*([self.blas] if self.blas is not None else []), *self.libraries.values()):
            with suppress(DriverError):  # a broken context raises
                library.close()
        self.blas = None
        self.libraries.clear()
        self.assertions.close()

    def _attribute(self, attribute: Any) -> int:
        return int(check(cu.cuDeviceGetAttribute(attribute, self.handle)))

    def _properties(self) -> DeviceProperties:
        facts = {name: self._attribute(attribute) for name, attribute in _ATTRIBUTES.items()}
        return DeviceProperties(
            name=check(cu.cuDeviceGetName(256, self.handle)).split(b"\0")[0].decode(),
            total_memory=int(check(cu.cuDeviceTotalMem(self.handle))),
            uuid=str(uuid.UUID(bytes=bytes(check(cu.cuDeviceGetUuid(self.handle)).bytes))),
            **facts,
        )
