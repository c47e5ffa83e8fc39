"""`PinnedAllocator`: page-locked host memory that is used again once no copy needs it.

Pinning is expensive, so freed memory is kept. Sizes round up to 512 bytes, never to a power of two, and a
kept block serves a request only if at most an eighth of it (or 4 KiB) is wasted. A block that asynchronous
copies use waits, when freed, for an event on each stream of those copies; any other is reused at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from flambeau.core.errors import OutOfMemoryError
from flambeau.driver.api import Driver, HostMemory
from flambeau.runtime.holes import Holes
from flambeau.runtime.statistics import format_size
from flambeau.runtime.turn import Turn
from flambeau.runtime.uses import Uses

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream

NO_ACCELERATOR = "Cannot access accelerator device when none is available."
ROUND = 512
SMALL_WASTE = 4096
_HOST = 0  # what observers are told in place of a stream


class PinnedBlock:
    """A piece of pinned memory. `uses`: the streams, by handle, whose copies use it."""

    __slots__ = ("memory", "ptr", "requested", "size", "uses")

    def __init__(self, memory: HostMemory | None, size: int) -> None:
        self.memory = memory
        self.ptr = 0 if memory is None else memory.ptr
        self.size = size
        self.requested = 0
        self.uses: dict[int, Stream] = {}


class PinnedAllocator:
    """Pinned memory of one machine. It belongs to no device: allocating makes no context.

    `free` may be called from anywhere, also by a destructor in the middle of `allocate`.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kept: Holes[PinnedBlock] = Holes()
        self._uses: Uses[PinnedBlock] = Uses()
        self._freed: deque[PinnedBlock] = deque()
        self._turn = Turn(self._freed, self._try_receive)
        self._closed = False
        self.reserved_bytes = 0

    def allocate(self, nbytes: int) -> PinnedBlock:
        """A block of at least `nbytes` bytes; 0 bytes are at address 0. Raises OutOfMemoryError."""
        if nbytes == 0:
            return PinnedBlock(None, 0)
        with self._turn as nested:
            block = self._find(-nbytes // ROUND * -ROUND, nested)
        block.requested = nbytes
        if self._driver.observes_blocks:
            self._driver.block_alloc(block.ptr, nbytes, _HOST)
        return block

    def record_use(self, block: PinnedBlock, stream: Stream) -> None:
        """A copy that uses the block was queued on `stream`: once freed, it waits for that stream."""
        block.uses[stream.handle] = stream

    def free(self, block: PinnedBlock) -> None:
        """Take a block back."""
        if not block.size or self._closed:
            return
        if not block.uses:
            self._end_life(block)
        self._freed.append(block)
        self._try_receive()

    def empty_cache(self) -> None:
        """Give all kept memory back to the system, after waiting for the copies that use it."""
        with self._turn as nested:
            if not nested and not self._closed:
                self._release_kept()

    def close(self) -> None:
        """The machine closes: from now on `free` does nothing."""
        self._closed = True

    def _find(self, size: int, nested: bool) -> PinnedBlock:
        if nested:  # a finalizer allocates in the middle of an allocation: touch nothing
            return self._new(size)
        self._poll()
        block = self._kept.best(size)
        if block is not None and block.size - size <= max(SMALL_WASTE, block.size // 8):
            self._kept.remove(block)
            return block
        with suppress(OutOfMemoryError):
            return self._new(size)
        self._release_kept()
        return self._new(size)

    def _new(self, size: int) -> PinnedBlock:
        try:
            memory = self._driver.host_alloc(size)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"CUDA error: out of memory. The host cannot pin {format_size(size)} more; "
                f"{format_size(self.reserved_bytes)} of pinned memory are in use. Pin less (fewer or smaller "
                "buffers, fewer DataLoader workers), or raise the limit on locked memory (ulimit -l). "
                f"The driver says: {error}"
            ) from None
        self.reserved_bytes += size
        return PinnedBlock(memory, size)

    def _release_kept(self) -> None:
        self._poll(wait=True)
        for block in list(self._kept):
            if block.memory is not None:
                self._driver.host_free(block.memory)
            self._kept.remove(block)
            self.reserved_bytes -= block.size

    def _try_receive(self) -> None:
        while self._freed and not self._closed and self._turn.try_enter():
            try:
                self._receive()
            finally:
                self._turn.leave()

    def _receive(self) -> None:
        while self._freed:
            block = self._freed.popleft()
            if block.uses:
                self._uses.wait(block, block.uses.values())
            else:
                self._kept.add(block)

    def _poll(self, wait: bool = False) -> None:
        self._receive()
        if self._uses.waiting:
            for over in self._uses.done(block_host=wait):
                over.block.uses = {}
                self._end_life(over.block, over.events)
                self._kept.add(over.block)

    def _end_life(self, block: PinnedBlock, after: Sequence[int] = ()) -> None:
        if self._driver.observes_blocks:
            self._driver.block_free(block.ptr, block.requested, _HOST, after)
