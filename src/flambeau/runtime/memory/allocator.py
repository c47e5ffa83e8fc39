"""`CachingAllocator`: device memory that is handed out again without asking the device.

The policy is the one PyTorch documents (`allocator_config.py`). Sizes round up to 512 bytes. Requests of at most 1
MiB come out of 2 MiB segments, larger ones below 10 MiB out of 20 MiB segments, still larger ones get a segment of
their own, rounded up to 2 MiB. Each stream has its own pools: memory returns to the stream that it was allocated on.
A request takes the smallest free block that fits and splits off the rest; free neighbours join (`heap.py`). Only
wholly free segments are released (`segments.py`).

# Note [The hot path]
A size that is asked for again gets a bin: a list of free blocks of that size, from which an allocation
pops and to which a free appends. Blocks in bins do not join their neighbours until the heap would have
to grow, and then those of small sizes first and no more than it takes, so a steady program hardly splits or
joins. Both operations are atomic, hence need no lock; a free takes none, ever, so that it may run in a destructor
in any thread, even one that the garbage collector runs in the middle of an allocation. Where a block goes when
it is freed is its `home`: a bin,
the list of blocks that are to join, or the detour of those that cannot be reused yet.

A recording, and a MemPool that a thread's requests go to, keep the table of bins empty: then every request takes the
long way, and the short one pays nothing for them. A driver that observes blocks gets ways of its own (`_choose`).

# Note [Ended streams]
Programs may make a stream per iteration. Nobody allocates from its pools once it has ended, so whenever many
such pools have gathered and another segment is needed, theirs go back to the driver, which waits for the
device's work. They are not handed to other streams without an order, by which races of the program would go unseen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.context import Context
from flambeau.runtime.memory.allocator_config import (
    ROUND,
    SMALL_REQUEST,
    TOO_MUCH,
    WITHIN,
    Policy,
    from_environment,
)
from flambeau.runtime.memory.blocks import Block, Pool, label, pop
from flambeau.runtime.memory.event_log import LONG, Journal
from flambeau.runtime.memory.history import Columns, Recording
from flambeau.runtime.memory.log_entries import (
    CUT,
    DONE,
    DONE_PART,
    LARGE,
    LOOK,
    REFUSE,
    REQUEST,
    SMALL,
)
from flambeau.runtime.memory.pending_frees import Mark, Uses
from flambeau.runtime.memory.placement import DEFAULT, heap_of
from flambeau.runtime.memory.private_pool import PoolId, PrivatePool
from flambeau.runtime.memory.reentrant_lock import Turn
from flambeau.runtime.memory.resources import Resource
from flambeau.runtime.memory.segments import Segments
from flambeau.runtime.memory.statistics import Ledger, Tally
from flambeau.runtime.streams.stream_order import NEVER, Queue

if TYPE_CHECKING:
    from flambeau.runtime.streams.stream import Stream

_MANY_ENDED: Final = 64  # pools of ended streams that may gather
_KEYS: Final = 16384  # (stream, request) pairs that find their bin directly

Allocate = Callable[[int, "Stream"], Block]
Free = Callable[[Block], None]


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

    allocate: a block of at least so many bytes for a stream, aligned to 512; 0 bytes: a block at address 0.
    allocate_output: the same, which the next launch writes.
    free: take a block back, without a lock, from anywhere; after the context has closed it does nothing.
    explains: whether errors say where the memory is. remedy: for out-of-memory errors: what would have helped.
    on_shortage: who may free memory when there is none left.
    """

    __slots__ = (
        "_around", "_bins", "_detour", "_driver", "_empty", "_ended", "_entries", "_freed", "_heap", "_index",
        "_journal", "_late", "_many_ended", "_many_streams", "_orders", "_oversize", "_plain", "_raw", "_routes",
        "_segments", "_turn", "_uses", "_waiting", "allocate", "allocate_output", "context", "explains", "free",
        "num_alloc_retries", "num_ooms", "num_sync_all_streams", "on_shortage", "oversize_allocations",
        "oversize_segments", "policy", "remedy",
    )  # fmt: skip

    def __init__(self, context: Context, policy: Policy | None = None, placement: str = DEFAULT) -> None:
        self.context = context
        self._driver = context.driver
        self._index = context.driver_index
        self._orders = context.orders
        self._uses: Uses[Block] = Uses(self._outlives if context.driver.observes_blocks else None)
        self._waiting = self._uses.waiting
        self._ended: list[Pool] = []  # see Note [Ended streams]
        self._many_ended = _MANY_ENDED
        self._freed: deque[Block] = deque()
        self._late: list[Block] = []  # freed without a cache, to go back
        self._detour = _Detour(self._freed, self._try_receive)
        self._turn = Turn(self._freed, self._try_receive)  # see Note [Finalizers] in reentrant_lock.py
        self._journal = Journal(self._turn)
        self._entries = self._journal.entries
        self._heap = heap_of(placement, self._entries, self._orders, context.index)
        self._bins = self._heap.bins
        self._obey(from_environment() if policy is None else policy)
        self._segments = Segments(self._driver, self._index, self._journal, self._heap.follows)
        self._routes: dict[ref[Thread], PrivatePool] = {}  # where requests of a thread that is there go
        self._raw: dict[int, Block] = {}  # what programs allocated by address
        self._many_streams = False
        self._oversize: set[Block] = set()  # those that were when they were handed out
        self.oversize_allocations, self.oversize_segments = Tally(), self._segments.oversize
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.explains = True
        self.remedy: Callable[[CachingAllocator, Pool, int], str] | None = None
        self.on_shortage: Callable[[], object] | None = None
        self._empty = self._empty_block()
        if self.policy.fraction < 1:
            self.set_memory_fraction(self.policy.fraction)
        self._around: Callable[[Free], Free] | None = None  # of `tell_of_frees`
        self.allocate: Allocate = self._allocate
        self.allocate_output: Allocate = self._allocate
        if self._driver.observes_blocks:
            self.allocate = self._allocate_observed(written=False)
            self.allocate_output = self._allocate_observed(written=True)
        self.free: Free = self._free
        self._choose()

    # -- the hot path -------------------------------------------------------------------------------------
    def _allocate(self, nbytes: int, stream: Stream) -> Block:
        handle = stream.handle
        found = self._bins.get((handle, nbytes))
        if not found:
            return self._search(nbytes, handle)
        try:
            block = found.pop()
        except IndexError:  # another thread was faster
            return self._search(nbytes, handle)
        if block.requested != nbytes:
            label(block, nbytes)
        entries = self._entries
        entries.append(block.gain)
        if len(entries) > LONG:
            self._journal.settle()
        return block

    def _allocate_observed(self, written: bool) -> Allocate:
        """The same, told to the driver, with whether the next launch writes it."""
        bins, entries, tell = self._bins, self._entries, self._driver.block_alloc

        def allocate(nbytes: int, stream: Stream) -> Block:
            handle = stream.handle
            found = bins.get((handle, nbytes))
            try:
                block = found.pop()  # type: ignore[union-attr]
            except (AttributeError, IndexError):  # none has that size, or another thread was faster
                block = self._search(nbytes, handle)
                if not nbytes:
                    return block
            else:
                if block.requested != nbytes:
                    label(block, nbytes)
                entries.append(block.gain)
                if len(entries) > LONG:
                    self._journal.settle()
            tell(block.ptr, nbytes, handle, written, block.pool.token)
            return block

        return allocate

    def _free(self, block: Block) -> None:
        self._entries.append(block.loss)
        block.home.append(block)

    def _free_with_tick(self, block: Block) -> None:
        """The same where there are several streams: its time matters, see Note [Reuse by order]."""
        block.freed = block.pool.queue.freed(self._orders.now, block.freed)
        self._entries.append(block.loss)
        block.home.append(block)

    def _free_observed(self) -> Callable[[Block], None]:
        """The same, told to the driver."""
        context, orders, entries, tell = self.context, self._orders, self._entries, self._driver.block_free

        def free(block: Block) -> None:
            if not block.uses and block.size and not context.closed:  # else when those uses are over
                tell(block.ptr, block.requested, block.stream)
            block.freed = block.pool.queue.freed(orders.now, block.freed)
            entries.append(block.loss)
            block.home.append(block)

        return free

    def _free_recorded(self, block: Block) -> None:
        """The same, told to the driver and to the recording."""
        if self._driver.observes_blocks and not block.uses:
            self._end_life(block)
        block.freed = block.pool.queue.freed(self._orders.now, block.freed)
        recording = self._journal.recording
        if recording is not None and block.size:
            self._entries.append((block.loss, *recording.notes(free=True)))
            block.frames = None
        else:
            self._entries.append(block.loss)
        block.home.append(block)

    def _end_life(self, block: Block, after: Sequence[int] = ()) -> None:
        if block.size and not self.context.closed:
            self._driver.block_free(block.ptr, block.requested, block.stream, after)

    def _outlives(self, block: Block, events: Sequence[int]) -> None:
        """A freed block waits for these events of its uses."""
        self._driver.block_wait(block.ptr, block.requested, block.stream, events)

    def _choose(self) -> None:
        """Take the shortest way of freeing that serves all who want to know."""
        if self._journal.recording is not None:
            self.free = self._free_recorded
        elif self._driver.observes_blocks:
            self.free = self._free_observed()
        else:
            self.free = self._free_with_tick if self._many_streams else self._free
        if self._around is not None:
            self.free = self._around(self.free)
        self._bins.clear()

    def tell_of_frees(self, around: Callable[[Free], Free] | None) -> None:
        """Put a way of freeing that tells around the one that is chosen; None: no more."""
        self._around = around
        with self._turn:
            self._choose()

    @property
    def _short_way(self) -> bool:
        """Whether requests may be served from bins at once. See Note [The hot path]."""
        return not (self._routes or self._journal.recording is not None)

    # -- uses by other streams ----------------------------------------------------------------------------
    def record_stream(self, block: Block, stream: Stream) -> None:
        """When the block is freed, reuse it only after the work that `stream` has queued by then."""
        if stream.handle != block.stream and block.size:
            self._await(block, stream.handle, stream)

    def record_use(self, block: Block, mark: Mark) -> None:
        """When the block is freed, reuse it only after this mark: of those on one stream the last counts."""
        if block.size and (block.uses is None or not mark.is_before(block.uses.get(mark.key))):
            self._await(block, mark.key, mark)

    def _await(self, block: Block, key: int | Mark, use: Stream | Mark) -> None:
        if block.uses is None:
            block.uses = {}
        block.uses[key] = use
        block.loss = block.entry(REQUEST)  # still active
        block.home = self._detour

    def share(self, block: Block) -> None:
        """Another stream than its own uses the block: for this life of it the strict rule holds."""
        if block.size:
            block.shared = True
            block.home = self._detour

    def _try_receive(self) -> None:
        """Let freed blocks begin to wait."""
        if not self.context.closed:
            self._turn.serve(self._receive)

    def _receive(self) -> None:
        while self._freed:
            block = self._freed.popleft()
            if block.uses:
                self._uses.wait(block, block.uses.values())
            else:
                self._come_back(block)
        self._release_late()

    def _release_late(self) -> None:
        """What could not go back until now: the driver failed, or there was a capture."""
        late = self._late
        while late and not self._orders.capturing:
            self._segments.release(late[-1])  # if that fails it stays there
            late.pop()

    def _poll(self, wait: bool = False) -> None:
        """Take back what no stream uses any more; `wait` for all of it."""
        self._receive()
        if self._waiting:
            for over in self._uses.done(block_host=wait):
                block = over.block
                if self._driver.observes_blocks:
                    self._end_life(block, over.events)
                self._entries.append(block.entry(DONE_PART if block.is_split else DONE))
                block.shared = True
                self._come_back(block)

    def _come_back(self, block: Block) -> None:
        if block.bin is self._detour:
            self._late.append(block)
            self._release_late()
            return
        block.uses = None
        block.freed = NEVER if block.shared else self._orders.now
        block.shared = False
        block.trace = None
        if block in self._oversize:
            self._oversize.remove(block)
            self.oversize_allocations.add(-1)
        block.home = block.bin
        label(block, block.requested)
        block.bin.append(block)

    # -- finding a block ----------------------------------------------------------------------------------
    def _search(self, nbytes: int, stream: int) -> Block:
        if nbytes == 0:
            return self._empty
        turn = self._turn
        turn.acquire()
        nested, turn.busy = turn.busy, True
        try:
            if nested:
                block = self._new_apart(nbytes, stream)
            else:
                if self._freed or self._waiting or self._late:
                    self._poll()
                if len(self._entries) > LONG:
                    self._journal.settle()
                block = self._find(nbytes, stream)
        finally:
            turn.busy = nested
            turn.release()
            if self._freed and not nested:
                self._try_receive()
        return block

    def _find(self, nbytes: int, stream: int) -> Block:
        policy, limited = self.policy, 0
        private = self._routes.get(ref(current_thread())) if self._routes else None
        if self._plain:
            size = (nbytes - 1 | WITHIN) + 1
        elif policy.caching or (private is not None and self._orders.capturing):  # a graph keeps its memory
            size, limited = policy.rounded(nbytes), policy.max_split
        else:
            return self._new_apart(nbytes, stream, relieve=True)
        kind = SMALL if size <= SMALL_REQUEST else LARGE
        heap = self._heap
        pool = heap.pools.get((stream, kind, private))
        if pool is None:
            pool = self._new_pool(stream, kind, private)
        block = cut = None
        known = pool.bins.get(size)
        if known is not None and not (limited and policy.is_oversize(size)):  # else each is counted
            if self._short_way:
                if len(self._bins) >= _KEYS:
                    self._bins.clear()
                self._bins[stream, nbytes] = known
            block = pop(known)
        if block is None:
            loose = pool.loose
            while loose:
                heap.join(pool, loose.pop())
            block = heap.take(pool, size, policy) if limited else pool.holes.take(size)
            if self._many_streams and (block is None or block.size - size >= pool.least):
                block = heap.better(pool, size, block, policy)
                known = pool.bins.get(size)
            if block is None:
                block = self._find_farther(pool, size, nbytes)
                pool = block.pool  # a MemPool may help out
                known = pool.bins.get(size)  # consolidating drops bins that are nobody's home
            if block.size - size >= pool.least and not (limited and policy.keeps_whole(size)):
                cut = heap.split(block, size)
            if limited and policy.is_oversize(block.size):
                block.home, block.bin = self._detour, pool.loose
                self._oversize.add(block)
                self.oversize_allocations.add(1)
            elif known is None:
                block.home = block.bin = pool.home(size)
            else:
                pool.homes[size] += 1
                block.home = block.bin = known
        label(block, nbytes)
        if self._journal.recording is None:  # as `book` has it, without the call
            self._entries.append(block.gain)
        else:
            self._journal.book(block)
        if cut is not None:  # last: free are never both of its parts
            self._entries.append(cut)
        return block

    def _new_pool(self, stream: int, kind: int, private: PrivatePool | None) -> Pool:
        if not self._many_streams and any(other[0] != stream for other in self._heap.pools):
            self._begin_ticks()
        return self._heap.new_pool(stream, kind, private, self.policy)

    def stream_began(self) -> None:
        """A stream was made beside the default one."""
        if not self._many_streams:
            with self._turn:
                self._begin_ticks()

    def _begin_ticks(self) -> None:
        """From now on times of frees matter: what is free counts as freed now."""
        self._many_streams = True
        for block in self._segments.blocks():
            block.freed = max(block.freed, self._orders.now)
        self._choose()

    def _find_farther(self, pool: Pool, size: int, nbytes: int) -> Block:
        """A hole, taken out, that is not at hand: of an ordered stream, of joined bins, of a new segment."""
        if size >= TOO_MUCH:
            raise _too_much()
        heap, policy = self._heap, self.policy
        heap.searches += 1
        if self._many_streams and heap.adopt(pool):
            block = heap.near(pool, size, policy)
            if block is not None:
                return block
        heap.consolidate(pool, None if policy.max_split else size)
        return heap.take(pool, size, policy) or self._grow(pool, size, nbytes)

    # -- when there is none -------------------------------------------------------------------------------
    def _grow(self, pool: Pool, size: int, nbytes: int) -> Block:
        """A hole of a new segment that `size` fits in; what is cached is given back first if it must be."""
        if self._orders.capturing:  # a CUDA graph: nothing can be given back, since that waits for the device
            try:
                return self._more(pool, size)
            except OutOfMemoryError:
                raise self._refuse(pool, size, nbytes) from None
        if len(self._ended) >= self._many_ended:
            self._release_ended()
        if self.policy.collect_above and self._segments.excess(self.policy) > 0:
            shared = self._heap.shared()
            for each in shared:
                self._heap.consolidate(each)
            self._segments.release_idle(shared, self.policy, self._heap.searches)
        try:
            return self._more(pool, size)
        except OutOfMemoryError:
            self._relieve()
        block = self._heap.take(pool, size, self.policy)
        if block is not None:
            return block
        self._segments.release_free(self._heap.shared())
        try:
            return self._more(pool, size)
        except OutOfMemoryError:
            block = self._heap.of_last_resort(pool, size, self.policy)
            if block is None:
                raise self._refuse(pool, size, nbytes) from None
        return block

    def _relieve(self) -> None:
        """The device refuses: make holes of all that is free, or will be."""
        self.num_alloc_retries += 1
        if self.on_shortage is not None:
            self.on_shortage()
        self._consolidate_all()

    def _more(self, pool: Pool, size: int) -> Block:
        return self._segments.grow(pool, size, self.policy, self._orders.now)

    def _refuse(self, pool: Pool, size: int, nbytes: int) -> OutOfMemoryError:
        self.num_ooms += 1
        free, _ = self._driver.mem_info(self._index)  # in the place of an address
        self._journal.write(pool.entry(REFUSE, size, nbytes, free))
        self._journal.settle()
        if not self.explains:
            return OutOfMemoryError("out of memory")
        explain = import_module("flambeau.runtime.memory_reports.oom_message")  # seldom wanted
        return OutOfMemoryError(explain.out_of_memory(self, pool, size))

    def stream_ended(self, handle: int) -> None:
        """A stream was destroyed: its memory goes back to the driver by and by."""
        with self._turn:
            ended = self._heap.of_stream(handle)
            self._ended += ended
        if not ended:
            self._orders.forget(handle)

    def _release_ended(self) -> None:
        """Give back what ended streams keep; pools with blocks in use stay, and those of MemPools that live."""
        private = {pool for pool in self._ended if pool.private is not None and pool.private.open}
        ended = [pool for pool in self._ended if pool not in private]
        for pool in ended:
            self._heap.consolidate(pool)
        self._segments.release_free(ended)
        used = private.union([block.pool for block in self._segments.blocks()])
        for pool in self._ended:
            if pool not in used:
                self._heap.forget(pool)
                self._orders.forget(pool.stream)
        self._ended = [pool for pool in self._ended if pool in used]
        self._many_ended = 2 * len(self._ended) + _MANY_ENDED  # looking costs as much as there is

    def _new_apart(self, nbytes: int, stream: int, relieve: bool = False) -> Block:
        """A segment that is one block and is released when it is freed: no cache, no shared structure.

        relieve: what is cached may be given back for it.
        """
        size = -nbytes // ROUND * -ROUND
        if size >= TOO_MUCH:
            raise _too_much()
        kind = SMALL if size <= SMALL_REQUEST else LARGE
        pool = Pool(kind, self._orders.queue(stream), None, set())
        pool.token = -1  # no other block gets this memory
        try:
            block = self._segments.new(pool, size, self.policy, self._orders.now)
        except OutOfMemoryError:
            if not relieve or self._orders.capturing:
                raise self._refuse(pool, size, nbytes) from None
            self._relieve()
            self._segments.release_free(self._heap.shared())
            return self._new_apart(nbytes, stream)
        block.home = block.bin = self._detour
        label(block, nbytes)
        self._journal.book(block)
        return block

    def _consolidate_all(self) -> None:
        self.num_sync_all_streams += 1
        self._poll(wait=True)
        for pool in self._heap.pools.values():
            self._heap.consolidate(pool)

    def empty_cache(self) -> None:
        """Give back every segment that no block of is in use, after waiting for recorded uses. None in a capture."""
        if self.context.closed:
            return
        with self._turn as nested:
            if not nested and not self._orders.capturing:
                self._consolidate_all()
                self._segments.release_free(self._heap.shared())
                self._forget_closed()

    # -- MemPools, resources, memory by address -----------------------------------------------------------
    def route(self, private: PrivatePool | None) -> PrivatePool | None:
        """Where this thread's requests go from now on; where they went until now."""
        thread = current_thread()
        with self._turn:
            before = self._routes.pop(ref(thread), None)
            if private is not None:
                self._routes[ref(thread, self._routes.pop)] = private
            self._bins.clear()
        return before

    def release_private(self, id: PoolId) -> None:
        """A MemPool is gone: its memory goes back as it becomes free."""
        if self.context.closed:
            return
        with self._turn as nested:
            pools = [p for p in self._heap.pools.values() if p.private is not None and p.private.id == id]
            for pool in pools:
                if pool.private is not None:
                    pool.private.open = False
            if not nested and not self._orders.capturing:
                self._consolidate_all()
                self._segments.release_free(pools)
                self._forget_closed()

    def _forget_closed(self) -> None:
        """Of MemPools that are gone nothing is kept once all of their memory is."""
        used = {block.pool for block in self._segments.blocks()}
        for pool in list(self._heap.pools.values()):
            if pool.private is not None and not pool.private.open and pool not in used:
                self._heap.forget(pool)
                self._segments.forget(pool.private.id)

    def replace(self, source: Resource) -> None:
        """Ask `source` for each block from now on. RuntimeError: memory was allocated already."""
        if self.num_device_alloc:
            raise RuntimeError("Can't swap an already initialized allocator")
        self._segments.source = source
        self.set_caching(False)

    @property
    def source(self) -> Resource:
        """Where segments come from."""
        return self._segments.source

    def set_caching(self, on: bool) -> None:
        """Keep freed memory, or give it back at once."""
        with self._turn:
            self.set_policy_part(caching=on)

    def set_policy(self, policy: Policy) -> None:
        """Other settings from now on; whether to keep freed memory, and how much may be reserved, stay as they are."""
        with self._turn:
            self._obey(policy.with_(caching=self.policy.caching, fraction=self.policy.fraction))

    def set_policy_part(self, **changes: Any) -> None:
        """Change settings of the policy from now on."""
        self._obey(self.policy.with_(**changes))

    def _obey(self, policy: Policy) -> None:
        self.policy = policy
        self._plain = policy.caching and not (policy.divisions or policy.max_split)  # to be asked at once
        self._heap.obey(policy)
        self._bins.clear()

    def allocate_raw(self, nbytes: int, stream: Stream) -> int:
        """Memory by its address, until `free_raw`."""
        block = self.allocate(nbytes, stream)
        self.share(block)  # nobody tells us on which streams it is used
        if block.size:
            self._raw[block.ptr] = block
        return block.ptr

    def free_raw(self, ptr: int) -> bool:
        """Give back what `allocate_raw` returned; False if it did not return this address."""
        block = self._raw.pop(ptr, None)
        if block is not None:
            self.free(block)
        return block is not None

    # -- limits -------------------------------------------------------------------------------------------
    @property
    def memory_fraction(self) -> float:
        return self.policy.fraction

    @property
    def limit(self) -> int | None:
        """The most bytes that may be reserved; None: what the device has."""
        return self._segments.limit

    def set_memory_fraction(self, fraction: float) -> None:
        """Reserve at most this fraction (0 to 1) of the device's memory from now on."""
        total = self._driver.device_properties(self._index).total_memory
        with self._turn:
            self.set_policy_part(fraction=fraction)
            self._segments.limit = int(total * fraction)

    # -- figures ------------------------------------------------------------------------------------------
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that are handed out, rounded as they are."""
        return self._journal.allocated_bytes()

    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return self._segments.reserved

    @property
    def num_device_alloc(self) -> int:
        """How often the driver was asked for memory."""
        return self._segments.calls.allocated

    @property
    def num_device_free(self) -> int:
        """How often the driver was given memory back."""
        return self._segments.calls.freed

    def ledger(self) -> Ledger:
        """The figures, made up to now. See Note [The journal] in event_log.py."""
        return self._journal.ledger()

    def private_figures(self) -> dict[PoolId, dict[str, dict[str, int]]]:
        """Bytes of the segments of each MemPool, by its id and kind of pool."""
        return self._segments.private_figures()

    def counters(self) -> dict[str, int]:
        """How often what happened."""
        return {
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_oom_rejections": 0,  # of the setting throw_on_cudamalloc_oom, which changes nothing here
        }

    def reset_peaks(self) -> None:
        with self._turn:
            self.ledger().reset_peaks()
            for tally in (self.oversize_allocations, *self._segments.tallies()):
                tally.reset_peak()

    def reset_accumulated(self) -> None:
        """Total increases and decreases, and the counters, start again from 0."""
        with self._turn:
            self.ledger().reset_accumulated()
            for tally in (self.oversize_allocations, *self._segments.tallies()):
                tally.reset_accumulated()
            self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0

    # -- history ------------------------------------------------------------------------------------------
    def record(self, recording: Recording | None) -> None:
        """Note who asks for memory from now on; None: note it no longer."""
        with self._turn:
            self._journal.record(recording)
            if recording is None:
                for block in self._segments.blocks():
                    block.frames = None
            self._choose()

    @property
    def recording(self) -> Recording | None:
        return self._journal.recording

    def history(self) -> Columns:
        """What happened, the latest last, as far back as it is kept."""
        return self._journal.history()

    def note_look(self) -> None:
        """A snapshot is taken: the history says when."""
        self._journal.write(self._empty.pool.entry(LOOK, 0, 0, 0))

    def frames_at(self, ptr: int) -> list[dict[str, Any]] | None:
        """Who asked for the block in use that begins at an address, if that was recorded."""
        for block in self._segments.blocks():
            if block.ptr == ptr and block.frames is not None:
                return cast(list[dict[str, Any]], block.frames.frames())
        return None

    @property
    def still(self) -> Turn:
        """In this turn other threads begin no search: for reports, which look at all blocks."""
        return self._turn

    def segments(self) -> Iterator[list[Block]]:
        """The blocks of each segment, in the order of their addresses. For reports."""
        return self._segments.runs()

    def grows(self, ptr: int) -> bool:
        """Whether an address lies in a segment that grows."""
        return self._segments.grows(ptr)

    def waiting(self) -> set[Block]:
        """Freed blocks that wait for other streams. For reports."""
        with self._turn:
            return {*self._waiting, *[block for block in list(self._freed) if block.uses]}

    def free_blocks(self) -> set[Block]:
        """The blocks that could be handed out: holes, and those in bins. For reports."""
        with self._turn:
            return self._heap.free_blocks().union(self._late)

    # -- the rest -----------------------------------------------------------------------------------------
    def _empty_block(self) -> Block:
        block = Block(0, 0, Pool(SMALL, Queue(0), None, set()), 0)
        block.home = block.bin = deque(maxlen=0)  # keeps nothing
        block.gain = block.loss = block.pool.entry(CUT, 0, 0, 0)  # says nothing
        return block


def _too_much() -> OutOfMemoryError:
    return OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
