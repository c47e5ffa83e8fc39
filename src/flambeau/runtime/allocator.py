"""`CachingAllocator`: device memory that is handed out again without asking the device.

The policy is the one PyTorch documents. Sizes round up to 512 bytes. Requests of at most 1 MiB come out
of 2 MiB segments, larger ones below 10 MiB out of 20 MiB segments, still larger ones get a segment of
their own, rounded up to 2 MiB. Each stream has its own pools: memory returns to the stream that it was
allocated on. A request takes the smallest free block that fits and splits off the rest (small pool: 512
bytes or more; large pool: more than 1 MiB); free neighbours join. Only wholly free segments are released.

# Note [Ended streams]
Programs may make a stream per iteration. Nobody allocates from its pools once it has ended, so whenever many
such pools have gathered and another segment is needed, theirs go back to the driver, which waits for the
device's work. They are not handed to other streams: that would need an order between the streams, by which
races of the program would go unseen.

# Note [The hot path]
A size that is asked for again gets a bin: a list of free blocks of that size, from which an allocation
pops and to which a free appends. Blocks in bins do not join their neighbours until the heap would have
to grow, so a steady program neither splits nor joins. Both operations are atomic, hence need no lock; a
free takes none, ever, so that it may run in a destructor in any thread, even one that the garbage
collector runs in the middle of an allocation. Where a block goes when it is freed is its `home`: a bin,
the list of blocks that are to join, or the detour of those that cannot be reused yet.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.context import Context
from flambeau.runtime.holes import Holes
from flambeau.runtime.statistics import (
    ALL,
    ALLOCATED_BYTES,
    LARGE,
    RESERVED_BYTES,
    SEGMENT,
    SMALL,
    Ledger,
    Posting,
    allocated_bytes_of,
    format_size,
)
from flambeau.runtime.turn import Turn
from flambeau.runtime.uses import Uses

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream

KIB, MIB = 1 << 10, 1 << 20
ROUND = 512
SMALL_REQUEST = MIB  # the largest of the small pool
SMALL_SEGMENT = 2 * MIB
LARGE_REQUEST = 10 * MIB  # from here on a segment of its own
LARGE_SEGMENT = 20 * MIB
ROUND_SEGMENT = 2 * MIB

_MANY_ENDED = 64  # pools of ended streams that may gather
_LONG_JOURNAL = 2048
_BINS = 512  # per pool: consolidating looks at each
_SEEN = 4096  # sizes remembered per pool, so that one asked for twice gets a bin
_KEYS = 16384  # (stream, request) pairs that find their bin directly


COUNTERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")


class Home(Protocol):
    """Where blocks go when they are freed."""

    def append(self, block: Block, /) -> None: ...


class Block:
    """A part of a segment: handed out, or free. `previous` and `next` are its neighbours in the segment."""

    __slots__ = (
        "bin", "gain", "home", "is_hole", "loss", "next", "pool", "previous", "ptr", "requested", "size",
        "uses",
    )  # fmt: skip

    gain: Posting
    loss: Posting

    def __init__(self, ptr: int, size: int, pool: Pool) -> None:
        self.ptr = ptr
        self.size = size
        self.pool = pool
        self.requested = 0
        self.previous: Block | None = None
        self.next: Block | None = None
        self.is_hole = False  # in pool.holes
        self.home: Home = pool.loose
        self.bin: Home = pool.loose  # its home when no other stream uses it
        self.uses: dict[int, Stream] = {}  # by handle: the streams that record_stream named

    @property
    def is_split(self) -> bool:
        """Whether its segment has other blocks. Constant while it is no hole: only holes join or split."""
        return self.previous is not None or self.next is not None


class Bin(list[Block]):
    """Free blocks for one rounded size. `blocks` counts those whose home it is, free or not."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = 0


class Pool:
    """The small or the large blocks of one stream: holes by size, bins, and loose ones that are to join."""

    __slots__ = ("bins", "holes", "kind", "loose", "seen", "stream")

    def __init__(self, kind: int, stream: int) -> None:
        self.kind = kind
        self.stream = stream
        self.holes: Holes[Block] = Holes()
        self.bins: dict[int, Bin] = {}
        self.loose: list[Block] = []
        self.seen: set[int] = set()

    def home(self, size: int) -> Bin | list[Block]:
        """Where blocks of a rounded size go: a bin from the second request on."""
        found = self.bins.get(size)
        if found is not None:
            return found
        if size in self.seen and len(self.bins) < _BINS:
            made = self.bins[size] = Bin()
            return made
        if len(self.seen) >= _SEEN:
            self.seen.clear()
        self.seen.add(size)
        return self.loose


class _Detour:
    """The home of blocks that cannot be reused as soon as they are freed."""

    __slots__ = ("_freed", "_receive")

    def __init__(self, freed: deque[Block], receive: Callable[[], None]) -> None:
        self._freed = freed
        self._receive = receive

    def append(self, block: Block, /) -> None:
        self._freed.append(block)
        self._receive()


class CachingAllocator:
    """Memory of one CUDA device. `allocate` raises OutOfMemoryError, and then nobody lost anything.

    `free` takes no lock and may be called from anywhere; after the context has closed it does nothing.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._driver = context.driver
        self._pools: dict[tuple[int, int], Pool] = {}
        self._bins: dict[tuple[int, int], Bin] = {}  # by stream and request: the hot path's only look-up
        self._segments: dict[int, Block] = {}  # each segment's first block, by address
        self._journal: list[Posting] = []
        self._ledger = Ledger()
        self._uses: Uses[Block] = Uses()
        self._ended: list[Pool] = []  # see Note [Ended streams]
        self._many_ended = _MANY_ENDED
        self._freed: deque[Block] = deque()
        self._detour = _Detour(self._freed, self._try_receive)
        self._turn = Turn(self._freed, self._try_receive)  # see Note [Finalizers] in turn.py
        self._caching = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") in ("", "0")
        self._fraction = 1.0
        self._limit: int | None = None
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self._empty = self._empty_block()
        observed = context.driver.observes_blocks
        self.allocate: Callable[[int, Stream], Block] = (
            self._allocate_observed if observed else self._allocate
        )
        self.free: Callable[[Block], None] = self._free_observed if observed else self._free

    # -- the hot path -------------------------------------------------------------------------------------
    def _allocate(self, nbytes: int, stream: Stream) -> Block:
        """A block of at least `nbytes` bytes for `stream`, aligned to 512. 0 bytes: a block at address 0."""
        found = self._bins.get((stream.handle, nbytes))
        if not found:
            return self._search(nbytes, stream.handle)
        try:
            block = found.pop()
        except IndexError:  # another thread was faster
            return self._search(nbytes, stream.handle)
        if block.requested != nbytes:
            _label(block, nbytes)
        journal = self._journal
        journal.append(block.gain)
        if len(journal) > _LONG_JOURNAL:
            self._settle()
        return block

    def _free(self, block: Block) -> None:
        """Take a block back."""
        self._journal.append(block.loss)
        block.home.append(block)

    def _allocate_observed(self, nbytes: int, stream: Stream) -> Block:
        block = self._allocate(nbytes, stream)
        if nbytes:
            self._driver.block_alloc(block.ptr, nbytes, stream.handle)
        return block

    def _free_observed(self, block: Block) -> None:
        if not block.uses:  # else its life ends when those uses are over
            self._end_life(block)
        self._free(block)

    def _end_life(self, block: Block, after: Sequence[int] = ()) -> None:
        if block.size and not self._context.closed:
            self._driver.block_free(block.ptr, block.requested, block.pool.stream, after)

    # -- uses by other streams ----------------------------------------------------------------------------
    def record_stream(self, block: Block, stream: Stream) -> None:
        """When the block is freed, reuse it only after the work that `stream` has queued by then."""
        if stream.handle == block.pool.stream or not block.size:
            return
        block.uses[stream.handle] = stream
        block.loss = (block.pool.kind, -1, -block.size, -block.requested, 0, 0, 0, 0)  # still active
        block.home = self._detour

    def _try_receive(self) -> None:
        """Let freed blocks begin to wait, unless somebody has the turn: who has it does so afterwards."""
        while self._freed and not self._context.closed and self._turn.try_enter():
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
                self._come_back(block)

    def _poll(self, wait: bool = False) -> None:
        """Take back what no stream uses any more; `wait` for all of it."""
        self._receive()
        if self._uses.waiting:
            for block, events in self._uses.done(block_host=wait):
                if self._driver.observes_blocks:
                    self._end_life(block, events)
                split = block.is_split
                self._journal.append((block.pool.kind, 0, 0, 0, -1, -block.size, split, block.size * split))
                self._come_back(block)

    def _come_back(self, block: Block) -> None:
        if block.bin is self._detour:
            self._release(block)
            return
        block.uses = {}
        block.home = block.bin
        _label(block, block.requested)
        block.home.append(block)

    # -- finding a block ----------------------------------------------------------------------------------
    def _search(self, nbytes: int, stream: int) -> Block:
        if nbytes == 0:
            return self._empty
        with self._turn as nested:
            if nested:
                return self._new_apart(nbytes, stream)
            if self._freed or self._uses.waiting:
                self._poll()
            return self._find(nbytes, stream) if self._caching else self._find_uncached(nbytes, stream)

    def _find_uncached(self, nbytes: int, stream: int) -> Block:
        try:
            return self._new_apart(nbytes, stream)
        except OutOfMemoryError:
            self._poll(wait=True)
        return self._new_apart(nbytes, stream)

    def _find(self, nbytes: int, stream: int) -> Block:
        size = -nbytes // ROUND * -ROUND
        pool = self._pool(SMALL if size <= SMALL_REQUEST else LARGE, stream)
        known = pool.bins.get(size)
        if known is not None:
            if len(self._bins) >= _KEYS:
                self._bins.clear()
            self._bins[stream, nbytes] = known
            block = _pop(known)
            if block is not None:
                _label(block, nbytes)
                self._journal.append(block.gain)
                return block
        self._join_all(pool, pool.loose)
        block = pool.holes.best(size) or self._best_of_everything(pool, size)
        if block is None:
            block = self._grow(pool, size)
        return self._hand_out(block, size, nbytes)

    def _pool(self, kind: int, stream: int) -> Pool:
        pool = self._pools.get((kind, stream))
        if pool is None:
            pool = self._pools[kind, stream] = Pool(kind, stream)
        return pool

    def _best_of_everything(self, pool: Pool, size: int) -> Block | None:
        self._consolidate(pool)
        return pool.holes.best(size)

    def _hand_out(self, block: Block, size: int, nbytes: int) -> Block:
        """Take a hole out of its pool, split off what is not needed, and book it."""
        pool = block.pool
        pool.holes.remove(block)
        block.is_hole = False
        rest = block.size - size
        splits = -1 if block.is_split else 0
        split_bytes = splits * block.size
        if rest > MIB or (rest and pool.kind == SMALL):
            _split(block, size)
            splits += 1
            split_bytes += rest
        home = pool.home(size)  # only now: consolidating drops bins that are nobody's home
        block.home = block.bin = home
        if isinstance(home, Bin):
            home.blocks += 1
        _label(block, nbytes)
        kept = block.size
        self._journal.append((pool.kind, 1, kept, nbytes, 1, kept, splits, split_bytes))
        if len(self._journal) > _LONG_JOURNAL:
            self._settle()
        return block

    # -- joining ------------------------------------------------------------------------------------------
    def _consolidate(self, pool: Pool) -> None:
        """Join the blocks of all bins with their neighbours; bins that no block calls home go."""
        for blocks in list(pool.bins.values()):
            blocks.blocks -= self._join_all(pool, blocks)
        self._join_all(pool, pool.loose)
        empty = [size for size, blocks in pool.bins.items() if not blocks.blocks]
        for size in empty:
            del pool.bins[size]
        if empty:
            self._bins.clear()

    def _join_all(self, pool: Pool, blocks: list[Block]) -> int:
        count = 0
        while (block := _pop(blocks)) is not None:
            self._join(pool, block)
            count += 1
        return count

    def _join(self, pool: Pool, block: Block) -> None:
        """Make a free block a hole, one with the holes beside it."""
        parts, total = (1, block.size) if block.is_split else (0, 0)
        right = block.next
        if right is not None and right.is_hole:
            parts, total = parts + 1, total + right.size
            pool.holes.remove(right)
            _absorb(block, right)
        left = block.previous
        if left is not None and left.is_hole:
            parts, total = parts + 1, total + left.size
            pool.holes.remove(left)
            _absorb(left, block)
            block = left
        block.is_hole = True
        pool.holes.add(block)
        if parts > 1:
            kept = block.is_split
            self._journal.append((pool.kind, 0, 0, 0, 0, 0, kept - parts, kept * block.size - total))

    # -- segments -----------------------------------------------------------------------------------------
    def _grow(self, pool: Pool, size: int) -> Block:
        """A new segment's hole that `size` fits in; what is cached is given back first if it must be."""
        if len(self._ended) >= self._many_ended:
            self._release_ended()
        try:
            return self._new_hole(pool, segment_size(size))
        except OutOfMemoryError:
            self.num_alloc_retries += 1
        self._consolidate_all()
        block = pool.holes.best(size)
        if block is not None:
            return block
        self._release_holes(self._pools.values())
        try:
            return self._new_hole(pool, segment_size(size))
        except OutOfMemoryError:
            self.num_ooms += 1
        raise OutOfMemoryError(self._explain(pool, size))

    def stream_ended(self, handle: int) -> None:
        """A stream was destroyed: its memory goes back to the driver by and by."""
        with self._turn:
            ended = [self._pools.get((kind, handle)) for kind in (SMALL, LARGE)]
            self._ended += [pool for pool in ended if pool is not None]

    def _release_ended(self) -> None:
        """Give back what ended streams keep; pools with blocks in use stay."""
        for pool in self._ended:
            self._consolidate(pool)
        self._release_holes(self._ended)
        used = {first.pool for first in self._segments.values()}
        for pool in self._ended:
            if pool not in used:
                del self._pools[pool.kind, pool.stream]
        self._ended = [pool for pool in self._ended if pool in used]
        self._many_ended = 2 * len(self._ended) + _MANY_ENDED  # looking costs as much as there is

    def _new_hole(self, pool: Pool, size: int) -> Block:
        block = self._new_segment(pool, size)
        block.is_hole = True
        pool.holes.add(block)
        return block

    def _new_segment(self, pool: Pool, size: int) -> Block:
        if self._limit is not None and self._ledger.current[ALL][RESERVED_BYTES] + size > self._limit:
            raise OutOfMemoryError("over the limit of set_per_process_memory_fraction")
        ptr = self._driver.mem_alloc(self._context.driver_index, size)
        block = self._segments[ptr] = Block(ptr, size, pool)
        self.num_device_alloc += 1
        self._ledger.add(pool.kind, SEGMENT, 1)
        self._ledger.add(pool.kind, RESERVED_BYTES, size)
        return block

    def _new_apart(self, nbytes: int, stream: int) -> Block:
        """A segment that is one block and is released when it is freed: no cache, no shared structure."""
        size = -nbytes // ROUND * -ROUND
        pool = Pool(SMALL if size <= SMALL_REQUEST else LARGE, stream)
        try:
            block = self._new_segment(pool, size)
        except OutOfMemoryError:
            self.num_ooms += 1
            raise OutOfMemoryError(self._explain(pool, size)) from None
        block.home = block.bin = self._detour
        _label(block, nbytes)
        self._journal.append(block.gain)
        return block

    def _release(self, block: Block) -> None:
        """Give a segment that is one free block back to the driver."""
        self._driver.mem_free(block.ptr)
        del self._segments[block.ptr]
        self.num_device_free += 1
        self._ledger.add(block.pool.kind, SEGMENT, -1)
        self._ledger.add(block.pool.kind, RESERVED_BYTES, -block.size)

    def _consolidate_all(self) -> None:
        self.num_sync_all_streams += 1
        self._poll(wait=True)
        for pool in self._pools.values():
            self._consolidate(pool)

    def _release_holes(self, pools: Iterable[Pool]) -> None:
        for pool in pools:
            for block in [hole for hole in pool.holes if not hole.is_split]:
                self._release(block)  # it waits for the device, and Ctrl-C may end the wait
                pool.holes.remove(block)

    def empty_cache(self) -> None:
        """Give back every segment that no block of is in use, after waiting for recorded uses."""
        if self._context.closed:
            return
        with self._turn as nested:
            if not nested:
                self._consolidate_all()
                self._release_holes(self._pools.values())

    # -- limits -------------------------------------------------------------------------------------------
    @property
    def memory_fraction(self) -> float:
        return self._fraction

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve at most this fraction (0 to 1) of the device's memory from now on."""
        total = self._driver.device_properties(self._context.driver_index).total_memory
        with self._turn:
            self._fraction = fraction
            self._limit = int(total * fraction)

    # -- figures ------------------------------------------------------------------------------------------
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that are handed out, rounded as they are."""
        with self._turn:
            if len(self._journal) > 32:
                self._settle()
            return self._ledger.current[ALL][ALLOCATED_BYTES] + allocated_bytes_of(self._journal)

    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return self._ledger.current[ALL][RESERVED_BYTES]

    def ledger(self) -> Ledger:
        """The figures, made up to now. See Note [The journal]."""
        self._settle()
        return self._ledger

    def reset_peaks(self) -> None:
        with self._turn:
            self.ledger().reset_peaks()

    def reset_accumulated(self) -> None:
        """Total increases and decreases, and the counters, start again from 0."""
        with self._turn:
            self.ledger().reset_accumulated()
            for counter in COUNTERS:
                setattr(self, counter, 0)

    def _settle(self) -> None:
        with self._turn:
            count = len(self._journal)
            postings = self._journal[:count]
            del self._journal[:count]
            self._ledger.post(postings)

    def segments(self) -> Iterator[list[Block]]:
        """The blocks of each segment, in the order of their addresses. For reports."""
        for first in self._segments.values():
            blocks, block = [], first.next
            blocks.append(first)
            while block is not None:
                blocks.append(block)
                block = block.next
            yield blocks

    # -- the rest -----------------------------------------------------------------------------------------
    def _empty_block(self) -> Block:
        block = Block(0, 0, Pool(SMALL, 0))
        block.home = block.bin = deque(maxlen=0)  # keeps nothing
        block.gain = block.loss = (SMALL, 0, 0, 0, 0, 0, 0, 0)
        return block

    def _explain(self, pool: Pool, size: int) -> str:
        """PyTorch's text, then what would help. Called when everything that could be released was."""
        free, total = self._driver.mem_info(self._context.driver_index)
        self._settle()
        current = self._ledger.current[ALL]
        reserved, allocated = current[RESERVED_BYTES], current[ALLOCATED_BYTES]
        hole = max([p.holes.largest() for p in self._pools.values()], default=0)
        allowed = "" if self._limit is None else f"{format_size(self._limit)} allowed; "
        text = (
            f"CUDA out of memory. Tried to allocate {format_size(segment_size(size))}. "
            f"GPU {self._context.index} has a total capacity of {format_size(total)} of which "
            f"{format_size(free)} is free. {allowed}"
            f"Of the allocated memory {format_size(allocated)} is allocated by PyTorch, and "
            f"{format_size(reserved - allocated)} is reserved by PyTorch but unallocated. "
            f"The request was for {format_size(size)} on one stream; the largest free hole of any stream is "
            f"{format_size(hole)}. "
        )
        return text + self._advice(size, reserved - allocated, free)

    def _advice(self, size: int, unallocated: int, free: int) -> str:
        if self._limit is not None and segment_size(size) <= free:
            return (
                "The device has room, but set_per_process_memory_fraction"
                f"({self._fraction}) does not allow it: raise the fraction."
            )
        if unallocated >= size:
            return (
                "What is reserved but unallocated would be enough, but lies in pieces of segments in use, "
                "or belongs to other streams: free the large tensors before the small ones that were "
                "made after them, or allocate on fewer streams."
            )
        return "Free tensors (del, or leave their function), or make the batch smaller."


def segment_size(size: int) -> int:
    """The size of the segment that a rounded request asks the driver for."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE_REQUEST else -size // ROUND_SEGMENT * -ROUND_SEGMENT


def _label(block: Block, nbytes: int) -> None:
    """Write what handing the block out, and taking it back, will change in the figures."""
    kind, size = block.pool.kind, block.size
    block.requested = nbytes
    if block.previous is None and block.next is None:
        block.gain = (kind, 1, size, nbytes, 1, size, 0, 0)
        block.loss = (kind, -1, -size, -nbytes, -1, -size, 0, 0)
    else:
        block.gain = (kind, 1, size, nbytes, 1, size, -1, -size)
        block.loss = (kind, -1, -size, -nbytes, -1, -size, 1, size)


def _split(block: Block, size: int) -> None:
    """Cut a block to `size`; the rest becomes a hole behind it."""
    rest = Block(block.ptr + size, block.size - size, block.pool)
    block.size = size
    rest.previous, rest.next = block, block.next
    if block.next is not None:
        block.next.previous = rest
    block.next = rest
    rest.is_hole = True
    block.pool.holes.add(rest)


def _absorb(left: Block, right: Block) -> None:
    left.size += right.size
    left.next = right.next
    if right.next is not None:
        right.next.previous = left


def _pop(blocks: list[Block]) -> Block | None:
    try:
        return blocks.pop()
    except IndexError:
        return None
