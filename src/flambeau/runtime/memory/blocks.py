"""Blocks, the parts of a segment, and pools, the free blocks of one stream and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from flambeau.runtime.memory.free_list import FreeList, ListedBlock
from flambeau.runtime.memory.log_entries import ALLOC, ALLOC_PART, CUT, FREE, FREE_PART, HEADS, body, entry
from flambeau.runtime.memory.private_pool import NOBODY, PrivatePool, pack_id
from flambeau.runtime.streams.stream_order import StreamActivity

if TYPE_CHECKING:
    from flambeau.runtime.memory.pending_frees import UseEvent
    from flambeau.runtime.streams.accelerator_stream import Stream

_MAX_SIZE_CLASSES: Final = 512  # size classes per pool; coalescing examines each
_MAX_RECENT_SIZES: Final = 1024  # recent sizes per kind of pool


class FreeDestination(Protocol):
    """A list-like object that receives freed blocks."""

    def append(self, block: Block, /) -> None: ...


class Block(ListedBlock):
    """A part of a segment: allocated or free.

    Attributes:
        ptr: Device address, aligned to 512.
        pool: The pool that the block belongs to.
        stream: Handle of the pool's stream.
        previous, next: The neighbours in the segment; None at its ends.
        requested: Bytes that the program asked for; `size` is rounded up.
        free_destination: Receives the block when it is freed.
        default_list: The `free_destination` while no other stream uses the block.
        alloc_entry, free_entry: The event log's entries for the block's allocation and free.
        uses: Stream handle or event -> use that must finish before reuse; None if there is none.
        freed: Logical time of the last free. See Note [Reuse by order] in cross_stream_reuse.py.
        shared: True if a stream other than its own uses the block.
        use_trace: (`freed`, last users) of a block that moved to another pool. See `last_users`.
        idle: The allocator's count of searches when the block became a whole free segment.
        frames: The stack of the allocating call, if recorded.
    """

    __slots__ = (
        "alloc_entry",
        "default_list",
        "frames",
        "free_destination",
        "free_entry",
        "freed",
        "idle",
        "next",
        "pool",
        "previous",
        "ptr",
        "requested",
        "shared",
        "stream",
        "use_trace",
        "uses",
    )  # fmt: skip

    # Set by the first allocation:
    requested: int
    free_destination: FreeDestination
    default_list: FreeDestination
    alloc_entry: bytes
    free_entry: bytes
    # Set while the block is a whole free segment:
    idle: int

    def __init__(self, ptr: int, size: int, pool: Pool, freed: int) -> None:
        self.size = size
        self.free_list = self.newer = self.older = (
            None  # set inline: super().__init__() would slow every split
        )
        self.ptr = ptr
        self.pool = pool
        self.stream = pool.stream
        self.previous: Block | None = None
        self.next: Block | None = None
        self.uses: dict[int | UseEvent, Stream | UseEvent] | None = None
        self.freed = freed
        self.shared = False
        self.use_trace: tuple[int, dict[int, int]] | None = None
        self.frames: Any = None

    @property
    def is_split(self) -> bool:
        """Return True if the block's segment has other blocks. Constant while the block is allocated."""
        return self.previous is not None or self.next is not None

    def entry(self, code: int) -> bytes:
        """Return the event log's entry for an event of this block."""
        return self.pool.entry(code, self.size, self.requested, self.ptr)


class Pool:
    """The free blocks of one stream and one kind, small or large.

    Attributes:
        kind: SMALL or LARGE.
        stream: Handle of the stream.
        queue: The record of the stream's commands, by which the allocator knows whether they have ended.
        private: The MemPool that the pool belongs to, if any.
        free_list: Free blocks by size.
        size_classes: Rounded size -> stack of free blocks of exactly this size.
        size_class_users: Rounded size -> number of blocks, allocated or free, that return to this stack.
        max_size_classes: The largest number of size classes.
        unmerged: Free blocks that are not coalesced with their neighbours yet.
        recent_sizes: Sizes requested recently, shared by the pools of this kind. A repeated size gets a size class.
        min_remainder: The smallest remainder for which a block is split.
        last_reuse_time: Logical time of the last complete scan of other streams' blocks.
        last_scan: Number of blocks that the last scan of other streams examined.
        scan_budget: Number of blocks that the next scan may examine.
        owner: The MemPool's id as the event log stores it.
        token: Identifies the pool among those of its stream, for observers.
        segment_heads, part_heads: Beginnings of the alloc and free entries of whole segments and of parts.
        part_entries: Change in the number of parts (1, -1 or -2) -> log entry.
    """

    __slots__ = (
        "free_list",
        "kind",
        "last_reuse_time",
        "last_scan",
        "max_size_classes",
        "min_remainder",
        "owner",
        "part_entries",
        "part_heads",
        "private",
        "queue",
        "recent_sizes",
        "scan_budget",
        "segment_heads",
        "size_class_users",
        "size_classes",
        "stream",
        "token",
        "unmerged",
    )  # fmt: skip

    min_remainder: int

    def __init__(self, kind: int, queue: StreamActivity, private: PrivatePool | None, seen: set[int]) -> None:
        self.kind = kind
        self.stream = queue.stream
        self.queue = queue
        self.private = private
        self.free_list: FreeList[Block] = FreeList()
        self.size_classes: dict[int, list[Block]] = {}
        self.max_size_classes = _MAX_SIZE_CLASSES
        self.size_class_users: dict[int, int] = {}
        self.unmerged: list[Block] = []
        self.recent_sizes = seen
        self.last_reuse_time = -1
        self.last_scan = self.scan_budget = 0
        self.owner = pack_id(NOBODY if private is None else private.id)
        self.token = self.owner << 1 | kind
        self.segment_heads = HEADS[ALLOC + kind], HEADS[FREE + kind]
        self.part_heads = HEADS[ALLOC_PART + kind], HEADS[FREE_PART + kind]
        self.part_entries = {n: self.entry(CUT, 0, n, 0) for n in (1, -1, -2)}

    def entry(self, code: int, size: int, requested: int, ptr: int) -> bytes:
        """Return the event log's entry for an event in this pool."""
        return entry(code + self.kind, size, requested, ptr, self.stream, self.owner)

    def free_destination(self, size: int) -> list[Block]:
        """Return the list that will receive a block of this size when it is freed.

        It is the size class; the second request of a size creates one.
        """
        blocks = self.size_classes.get(size)
        if blocks is not None:
            self.size_class_users[size] += 1
            return blocks
        seen = self.recent_sizes
        if size in seen and len(self.size_classes) < self.max_size_classes:
            blocks = self.size_classes[size] = []
            self.size_class_users[size] = 1
            return blocks
        if len(seen) >= _MAX_RECENT_SIZES:
            seen.clear()
        seen.add(size)
        return self.unmerged

    def release_size_class(self, size: int, count: int) -> None:
        """Subtract blocks that no longer return to a size class; the last one removes the class."""
        self.size_class_users[size] -= count
        if not self.size_class_users[size]:
            del self.size_classes[size], self.size_class_users[size]


def prepare_entries(block: Block, nbytes: int) -> None:
    """Set the request size of a block and the log entries of its allocation and free."""
    pool = block.pool
    block.requested = nbytes
    alloc, free = pool.segment_heads if block.previous is None and block.next is None else pool.part_heads
    rest = body(block.size, nbytes, block.ptr, pool.stream, pool.owner)
    block.alloc_entry = alloc + rest
    block.free_entry = free + rest


def merge_right(left: Block, right: Block) -> None:
    """Merge a block with its right neighbour."""
    left.size += right.size
    left.next = right.next
    if right.next is not None:
        right.next.previous = left
    if left.use_trace is not None or right.use_trace is not None:
        _merge_users(left, right)
    if right.freed > left.freed:
        left.freed = right.freed


def move_to_pool(block: Block, pool: Pool, home: FreeDestination) -> None:
    """Move a free block that is in no list to another pool, and store which streams used it last."""
    if block.use_trace is None or block.use_trace[0] != block.freed:
        block.use_trace = (block.freed, {block.stream: block.freed})
    block.pool = pool
    block.stream = pool.stream
    block.free_destination = block.default_list = home


def last_users(block: Block) -> dict[int, int]:
    """Return the last use of a free block by each stream: stream -> logical time.

    `use_trace` is valid if the block was not freed since. Otherwise its own stream is the only user: a stream takes
    a block only if all earlier users are ordered before it.
    """
    if block.use_trace is not None and block.use_trace[0] == block.freed:
        return block.use_trace[1]
    return {block.stream: block.freed}


def _merge_users(left: Block, right: Block) -> None:
    """Add the right block's users to the left block, which is about to absorb the right block."""
    both = dict(last_users(left))
    for stream, tick in last_users(right).items():
        both[stream] = max(both.get(stream, 0), tick)
    left.use_trace = (max(left.freed, right.freed), both)


def pop_newest(blocks: list[Block]) -> Block | None:
    """Remove and return the newest block; None if the list is empty, for example because another thread was faster."""
    try:
        return blocks.pop()
    except IndexError:
        return None
