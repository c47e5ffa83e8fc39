"""The caching device allocator. (Skeleton without a cache: the runtime room completes it.)"""

from __future__ import annotations

from flambeau.runtime.context import Context
from flambeau.runtime.stream import Stream


class PlainBlock:
    __slots__ = ("ptr", "size")

    def __init__(self, ptr: int, size: int) -> None:
        self.ptr = ptr
        self.size = size


class PlainAllocator:
    def __init__(self, context: Context) -> None:
        self._context = context

    def allocate(self, nbytes: int, stream: Stream) -> PlainBlock:
        return PlainBlock(self._context.driver.mem_alloc(self._context.driver_index, nbytes), nbytes)

    def free(self, block: PlainBlock) -> None:
        self._context.driver.mem_free(block.ptr)
