"""`Workspaces`: temporary memory of launches, from a pool of the device.

# Note [Workspaces of streams]
Memory that a launch returns is kept for later launches of its stream, which are ordered after it. A call of CUDA's pool
takes the host as long as a launch. Each stream keeps a few blocks, the most recent one on top. A block that is too
small for a request returns to the pool, so that large enough blocks remain. Very large blocks are never kept. While a
capture is active on the device every request goes to the pool, because a graph owns its memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cu

from flambeau.driver.cuda.device.calls import OUT_OF_MEMORY, check

if TYPE_CHECKING:
    from flambeau.driver.cuda.device.capture import CudaCapture

_POOL_KEEPS = 1 << 30  # bytes that the pool keeps between launches
_LARGEST, _MOST = 128 << 20, 4  # bytes of the largest block that is kept; number of blocks kept per stream


class Workspaces:
    """The workspaces of a device. See Note [Workspaces of streams]. `captures` are its captured streams."""

    def __init__(self, index: int, captures: dict[int, CudaCapture]) -> None:
        self._index, self._captures = index, captures
        self._pool: Any = None
        self._kept: dict[int, tuple[Any, list[int]]] = {}  # id of a stream -> native stream, addresses
        self._sizes: dict[int, int] = {}  # address -> bytes of the block

    def take(self, nbytes: int, native: Any) -> int:
        """Return workspace for one launch on a stream. Pass it to `give` after the launch was enqueued."""
        found = self._kept.get(id(native))
        if found is not None and nbytes <= _LARGEST and not self._captures:
            try:
                ptr = found[1].pop()
            except IndexError:
                pass
            else:
                if self._sizes[ptr] >= nbytes:
                    return ptr
                self._free(ptr, native)
        if self._pool is None:
            self._pool = self._new_pool()
        code, ptr = cu.cuMemAllocFromPoolAsync(nbytes, self._pool, native)
        if code == OUT_OF_MEMORY:  # other streams may hold the memory that is missing
            self.trim()
            code, ptr = cu.cuMemAllocFromPoolAsync(nbytes, self._pool, native)
        address = int(check((code, ptr)))
        self._sizes[address] = nbytes
        return address

    def give(self, ptr: int, native: Any) -> None:
        """Return a workspace to the pool. Later launches of the stream may reuse it immediately."""
        _, kept = self._kept.get(id(native)) or self._kept.setdefault(id(native), (native, []))
        if self._captures or len(kept) >= _MOST or self._sizes[ptr] > _LARGEST:
            self._free(ptr, native)
        else:
            kept.append(ptr)

    def _free(self, ptr: int, native: Any) -> None:
        del self._sizes[ptr]
        cu.cuMemFreeAsync(ptr, native)  # fails if the context is broken, which frees its memory

    def _free_all(self, kept: list[int], native: Any) -> None:
        with suppress(IndexError):  # other threads change the list meanwhile
            while True:
                self._free(kept.pop(), native)

    def forget(self, native: Any) -> None:
        """Free the workspaces of a stream that is about to be destroyed."""
        _, kept = self._kept.pop(id(native), (native, []))
        self._free_all(kept, native)

    def trim(self) -> None:
        """Free all workspaces that no launch uses."""
        if self._pool is None:
            return
        if not self._captures:  # the host cannot wait for a captured stream
            for native, kept in list(self._kept.values()):
                self._free_all(kept, native)
                check(cu.cuStreamSynchronize(native))
        check(cu.cuMemPoolTrimTo(self._pool, 0))

    def close(self) -> None:
        """Free everything, because the device closes."""
        if self._pool is not None:
            for _, kept in self._kept.values():
                for ptr in kept:
                    cu.cuMemFreeAsync(ptr, cu.CUstream(0))
            cu.cuMemPoolDestroy(self._pool)
            self._pool = None
        self._kept.clear()
        self._sizes.clear()

    def _new_pool(self) -> Any:
        properties = cu.CUmemPoolProps()
        properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._index
        pool = check(cu.cuMemPoolCreate(properties))
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        check(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(_POOL_KEEPS)))
        return pool
