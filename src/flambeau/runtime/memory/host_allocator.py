"""`HostAllocator`: memory of CPU tensors. Small freed blocks are kept for the next request of the same size.

Sizes round up to 64 bytes, addresses are aligned to 64. Freed blocks of at most 1 MiB are kept: at most 1 MiB per
size, at most 64 sizes, so at most 64 MiB in all. Larger memory is returned to the system immediately.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.device_context import Context

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream

ROUND = 64
KEPT_PER_SIZE = 1 << 20
KEPT_SIZES = 64


class Shelf(list["HostBlock"]):
    """The free blocks of one size. `room` is the number of further blocks that fit; 0 after the shelf is closed."""

    __slots__ = ("room",)

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room


class HostBlock:
    """A piece of CPU memory. `stream` is the CPU's only stream, whose work is done when a call returns."""

    __slots__ = ("ptr", "shelf", "size", "stream")

    def __init__(self, ptr: int, size: int, shelf: Shelf, stream: int) -> None:
        self.ptr = ptr
        self.size = size
        self.shelf = shelf
        self.stream = stream


Allocate = Callable[[int, "Stream"], HostBlock]
Free = Callable[[HostBlock], None]


class HostAllocator:
    """The allocator of CPU memory.

    Attributes:
        allocate: Returns a block of at least a number of bytes for a stream; 0 bytes are at address 0. RuntimeError: if
            the host refuses.
        allocate_output: Equal to `allocate`; launches call it for their outputs.
        free: Frees a block. A destructor may call it while `allocate` runs.
    """

    __slots__ = (
        "_context", "_driver", "_lock", "_nowhere", "_shelves", "allocate", "allocate_output", "free",
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        self._context = context
        self._driver = context.driver
        self._shelves: dict[int, Shelf] = {}  # rounded size -> shelf
        self._lock = threading.RLock()  # protects the dictionary of shelves
        self._nowhere = Shelf(0)
        self.allocate: Allocate = self._allocate
        self.allocate_output: Allocate = self._allocate
        self.free: Free = self._free

    def _allocate(self, nbytes: int, stream: Stream) -> HostBlock:
        size = -nbytes // ROUND * -ROUND
        shelf = self._shelves.get(size)
        if shelf:
            try:
                return shelf.pop()
            except IndexError:  # another thread took the last block
                pass
        if not size:
            return HostBlock(0, 0, self._nowhere, stream.handle)
        if shelf is None:
            shelf = self._new_shelf(size)
        try:
            ptr = self._driver.mem_alloc(self._context.driver_index, size)
        except OutOfMemoryError as error:  # PyTorch's CPU allocator has no special type
            raise RuntimeError(str(error)) from None
        return HostBlock(ptr, size, shelf, stream.handle)

    def _free(self, block: HostBlock) -> None:
        shelf = block.shelf
        if len(shelf) < shelf.room:
            shelf.append(block)
            if not shelf.room:  # the shelf was closed meanwhile
                self._clear(shelf)
        elif block.size and not self._context.closed:
            self._driver.mem_free(block.ptr)

    def wrap_free(self, around: Callable[[Free], Free] | None) -> None:
        """Replace `free` by `around(free)`, which notifies subscribers; None restores it."""
        self.free = self._free if around is None else around(self._free)

    def share(self, block: HostBlock) -> None:
        """Do nothing: the CPU has one stream."""

    def stream_created(self) -> None:
        """Do nothing: blocks of the CPU belong to no stream."""

    def stream_destroyed(self, handle: int) -> None:
        """Do nothing: blocks of the CPU belong to no stream."""

    def _new_shelf(self, size: int) -> Shelf:
        """Return a shelf for a size, in place of the oldest shelf if there are too many. Shelves of large sizes hold
        nothing.
        """
        if size > KEPT_PER_SIZE:
            return self._nowhere
        with self._lock:
            if len(self._shelves) >= KEPT_SIZES:
                self._clear(self._shelves.pop(next(iter(self._shelves))))
            return self._shelves.setdefault(size, Shelf(KEPT_PER_SIZE // size))

    def _clear(self, shelf: Shelf) -> None:
        shelf.room = 0
        while shelf:
            try:
                block = shelf.pop()
            except IndexError:
                return
            if not self._context.closed:
                self._driver.mem_free(block.ptr)

    def empty_cache(self) -> None:
        """Return all cached memory to the system."""
        with self._lock:
            shelves, self._shelves = self._shelves, {}
            for shelf in shelves.values():
                self._clear(shelf)
