"""Freed blocks that cannot be reused immediately."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.allocator_statistics import Tally
from flambeau.runtime.memory.blocks import Block, prepare_entries
from flambeau.runtime.memory.log_entries import DONE, DONE_PART, REQUEST, Entry
from flambeau.runtime.memory.pending_frees import PendingFrees, UseEvent
from flambeau.runtime.memory.reentrant_lock import AllocatorLock
from flambeau.runtime.memory.segments import Segments
from flambeau.runtime.streams.stream_order import NEVER

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream


class DeferredFrees:
    """The `free_destination` of blocks that cannot be reused as soon as they are freed.

    Other streams use the block, it is uncached and its memory goes to the driver, or it is oversize and counted.
    `append` takes no lock, as a free may run in a destructor (Note [Finalizers]). All other methods that change
    lists require the allocator's lock.

    Attributes:
        inbox: Freed blocks that are not processed yet. They are processed before the lock is released.
        waiting: Blocks whose uses by other streams are pending.
        to_release: Uncached blocks that wait for their release, because the driver failed or a capture is under way.
        oversize: Statistics of the allocated blocks above `max_split_size`.
    """

    __slots__ = (
        "_context", "_driver", "_entries", "_lock", "_oversize", "_pending", "_segments", "inbox", "oversize",
        "to_release", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        inbox: deque[Block],
        lock: AllocatorLock,
        entries: list[Entry],
        segments: Segments,
    ) -> None:
        self.inbox = inbox
        self.to_release: list[Block] = []
        self.oversize = Tally()
        self._oversize: set[Block] = set()  # blocks that were oversize when they were allocated
        self._driver = context.driver  # the context's refuses calls while it is suspended
        self._context, self._lock, self._entries, self._segments = context, lock, entries, segments
        self._pending: PendingFrees[Block] = PendingFrees(
            self._notify_wait if self._driver.observes_blocks else None
        )
        self.waiting = self._pending.waiting

    # -- before the free ----------------------------------------------------------------------------------
    def record_stream(self, block: Block, stream: Stream) -> None:
        """Reuse the block, once it is freed, only after the work that `stream` has queued by then."""
        if stream.handle != block.stream and block.size:
            self._add_use(block, stream.handle, stream)

    def record_use(self, block: Block, mark: UseEvent) -> None:
        """Reuse the block, once it is freed, only after this event. Of several events of one stream the last counts."""
        if block.size and (block.uses is None or not mark.is_before(block.uses.get(mark.key))):
            self._add_use(block, mark.key, mark)

    def _add_use(self, block: Block, key: int | UseEvent, use: Stream | UseEvent) -> None:
        if block.uses is None:
            block.uses = {}
        block.uses[key] = use
        block.free_entry = block.entry(REQUEST)  # still active
        block.free_destination = self

    def share(self, block: Block) -> None:
        """Apply the strict rule of Note [Reuse by order] until the next free, because another stream uses the block."""
        if block.size:
            block.shared = True
            block.free_destination = self

    def add_oversize(self, block: Block) -> None:
        """Count an allocated oversize block until it is freed."""
        block.free_destination, block.default_list = self, block.pool.unmerged
        self._oversize.add(block)
        self.oversize.add(1)

    # -- after the free -----------------------------------------------------------------------------------
    def append(self, block: Block, /) -> None:
        """Receive a freed block, and process it now if the lock is free."""
        self.inbox.append(block)
        self.try_process()

    def try_process(self) -> None:
        """Process the blocks in `inbox` if the lock is free; otherwise its holder does."""
        if not self._context.closed:
            self._lock.serve(self._process)

    def _process(self) -> None:
        while self.inbox:
            block = self.inbox.popleft()
            if block.uses:
                self._pending.wait(block, block.uses.values())
            else:
                self._return_block(block)
        self._release_late()

    def _release_late(self) -> None:
        late = self.to_release
        while late and not self._context.orders.capturing:
            self._segments.release(late[-1])  # if this fails, the block stays in the list
            late.pop()

    def poll(self, *, block_host: bool = False) -> None:
        """Free the blocks whose pending uses have finished.

        Args:
            block_host: True to block the host until all have finished.
        """
        self._process()
        if self.waiting:
            for over in self._pending.done(block_host=block_host):
                block = over.block
                if self._driver.observes_blocks and block.size and not self._context.closed:
                    self._driver.block_free(block.ptr, block.requested, block.stream, over.events)
                self._entries.append(block.entry(DONE_PART if block.is_split else DONE))
                block.shared = True
                self._return_block(block)

    def _return_block(self, block: Block) -> None:
        if block.default_list is self:  # uncached
            self.to_release.append(block)
            self._release_late()
            return
        block.uses = None
        block.freed = NEVER if block.shared else self._context.orders.now
        block.shared = False
        block.use_trace = None
        if block in self._oversize:
            self._oversize.remove(block)
            self.oversize.add(-1)
        block.free_destination = block.default_list
        prepare_entries(block, block.requested)
        block.default_list.append(block)

    def _notify_wait(self, block: Block, events: list[int]) -> None:
        """Notify the driver that a freed block waits for these events."""
        self._driver.block_wait(block.ptr, block.requested, block.stream, events)

    def waiting_blocks(self) -> set[Block]:
        """Return the freed blocks that wait for other streams. For reports."""
        return {*self.waiting, *[block for block in list(self.inbox) if block.uses]}
