"""`DirectAllocator`: memory straight from the driver, nothing kept. The CPU's: the C library caches already."""

from __future__ import annotations

from flambeau.driver.api import Driver
from flambeau.runtime.stream import Stream


class DirectBlock:
    """A piece of memory of its own."""

    __slots__ = ("ptr", "size")

    def __init__(self, ptr: int, size: int) -> None:
        self.ptr = ptr
        self.size = size


class DirectAllocator:
    """Allocates from device 0 of a driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def allocate(self, nbytes: int, stream: Stream) -> DirectBlock:
        """`nbytes` bytes; 0 bytes are at address 0."""
        return DirectBlock(self._driver.mem_alloc(0, nbytes) if nbytes else 0, nbytes)

    def free(self, block: DirectBlock) -> None:
        if block.size:
            self._driver.mem_free(block.ptr)
