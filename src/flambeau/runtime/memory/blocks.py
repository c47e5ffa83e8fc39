"""`Block`: a part of a segment, handed out or free. `Pool`: the blocks of one kind of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from flambeau.runtime.memory.free_list import Holes, Sized
from flambeau.runtime.memory.log_entries import ALLOC, ALLOC_PART, CUT, FREE, FREE_PART, HEADS, body, entry
from flambeau.runtime.memory.private_pool import NOBODY, PrivatePool, packed
from flambeau.runtime.streams.stream_order import Queue

if TYPE_CHECKING:
    from flambeau.runtime.memory.pending_frees import Mark
    from flambeau.runtime.streams.stream import Stream

_BINS: Final = 512  # per pool: consolidating looks at each
_SEEN: Final = 1024  # sizes remembered per kind of pool, so that one asked for twice gets a bin


class Home(Protocol):
    """Where blocks go when they are freed."""

    def append(self, block: Block, /) -> None: ...


class Block(Sized):
    """A part of a segment. `previous` and `next` are its neighbours there.

    `freed` is the tick by which its last life had ended, and `shared` says that other streams than its own use it now:
    both are for Note [Reuse by order] in cross_stream_reuse.py.
    """

    __slots__ = (
        "bin", "frames", "freed", "gain", "home", "idle", "loss", "next", "pool", "previous", "ptr", "requested",
        "shared", "stream", "trace", "uses",
    )  # fmt: skip

    # From when it is first handed out on:
    requested: int
    home: Home
    bin: Home  # its home when no other stream uses it
    gain: bytes  # the journal's entries when it is handed out, and when it is taken back
    loss: bytes
    # While it is a whole free segment:
    idle: int  # the allocator's count of searches when it became one

    def __init__(self, ptr: int, size: int, pool: Pool, freed: int) -> None:
        self.size = size
        self.holes = self.above = self.below = None  # here: a call of the base's would cost each cut
        self.ptr = ptr
        self.pool = pool
        self.stream = pool.stream
        self.previous: Block | None = None
        self.next: Block | None = None
        self.uses: dict[int | Mark, Stream | Mark] | None = None  # what its reuse must wait for
        self.freed = freed
        self.shared = False
        self.trace: tuple[int, dict[int, int]] | None = None  # see `users`
        self.frames: Any = None  # who asked for it, while that is recorded

    @property
    def is_split(self) -> bool:
        """Whether its segment has other blocks. Constant while it is no hole: only holes join or split."""
        return self.previous is not None or self.next is not None

    def entry(self, code: int) -> bytes:
        """What the journal says of something that happened to it."""
        return self.pool.entry(code, self.size, self.requested, self.ptr)


class Pool:
    """The small or the large blocks of one stream: holes by size, bins, and loose ones that are to join.

    `queue` says whether the stream was given anything lately; `private` is the MemPool that it belongs to, if any;
    `adopted` the tick at which it last took over all of others' blocks, `looked` how many were looked at the last time,
    `patience` how many it would look at once more; `seen` the sizes asked for lately, of all streams; `most_bins` how
    many bins it may have; `least`, for those of a heap, the smallest rest that is cut off a block. Of what the journal
    says: `owner` is the MemPool's id, `whole` and `part` are the heads of a block's entries where it is a segment or
    part of one, `parts` the entries that tell of one part more than there was, or one or two fewer. `token` names the
    pool among its stream's, for observers.
    """

    __slots__ = (
        "adopted", "bins", "holes", "homes", "kind", "least", "looked", "loose", "most_bins", "owner", "part", "parts",
        "patience", "private", "queue", "seen", "stream", "token", "whole",
    )  # fmt: skip

    least: int

    def __init__(self, kind: int, queue: Queue, private: PrivatePool | None, seen: set[int]) -> None:
        self.kind = kind
        self.stream = queue.stream
        self.queue = queue
        self.private = private
        self.holes: Holes[Block] = Holes()
        self.bins: dict[int, list[Block]] = {}
        self.most_bins = _BINS
        self.homes: dict[int, int] = {}  # by size: how many blocks call that bin their home, free or not
        self.loose: list[Block] = []
        self.seen = seen
        self.adopted = -1
        self.looked = self.patience = 0
        self.owner = packed(NOBODY if private is None else private.id)
        self.token = self.owner << 1 | kind
        self.whole = HEADS[ALLOC + kind], HEADS[FREE + kind]
        self.part = HEADS[ALLOC_PART + kind], HEADS[FREE_PART + kind]
        self.parts = {n: self.entry(CUT, 0, n, 0) for n in (1, -1, -2)}

    def entry(self, code: int, size: int, requested: int, ptr: int) -> bytes:
        """What the journal says of something that happened here."""
        return entry(code + self.kind, size, requested, ptr, self.stream, self.owner)

    def home(self, size: int) -> list[Block]:
        """Where a block of a rounded size without a bin goes when it is freed: to a bin from the second request on."""
        seen = self.seen
        if size in seen and len(self.bins) < self.most_bins:
            made = self.bins[size] = []
            self.homes[size] = 1
            return made
        if len(seen) >= _SEEN:
            seen.clear()
        seen.add(size)
        return self.loose

    def leave(self, size: int, count: int) -> None:
        """So many blocks call the bin of a size their home no longer. It goes with the last."""
        self.homes[size] -= count
        if not self.homes[size]:
            del self.bins[size], self.homes[size]


def label(block: Block, nbytes: int) -> None:
    """Write down what the journal says when the block is handed out, and when it is taken back."""
    pool = block.pool
    block.requested = nbytes
    alloc, free = pool.whole if block.previous is None and block.next is None else pool.part
    rest = body(block.size, nbytes, block.ptr, pool.stream, pool.owner)
    block.gain = alloc + rest
    block.loss = free + rest


def absorb(left: Block, right: Block) -> None:
    """Join two neighbours into the left one."""
    left.size += right.size
    left.next = right.next
    if right.next is not None:
        right.next.previous = left
    if left.trace is not None or right.trace is not None:
        _unite(left, right)
    if right.freed > left.freed:
        left.freed = right.freed


def give(block: Block, pool: Pool, home: Home) -> None:
    """A free block that is in no list changes to another pool, and remembers who used it."""
    if block.trace is None or block.trace[0] != block.freed:
        block.trace = (block.freed, {block.stream: block.freed})
    block.pool = pool
    block.stream = pool.stream
    block.home = block.bin = home


def users(block: Block) -> dict[int, int]:
    """Which streams used a free block last, and until which tick.

    A trace is of the block's last life but one if it was freed since: then at a later tick, because who takes a block
    over knows its user beyond the tick of its free.
    """
    if block.trace is not None and block.trace[0] == block.freed:
        return block.trace[1]
    return {block.stream: block.freed}


def _unite(left: Block, right: Block) -> None:
    """The left block, about to absorb the right one, has the users of both."""
    both = dict(users(left))
    for stream, tick in users(right).items():
        both[stream] = max(both.get(stream, 0), tick)
    left.trace = (max(left.freed, right.freed), both)


def pop(blocks: list[Block]) -> Block | None:
    """The newest, unless another thread was faster."""
    try:
        return blocks.pop()
    except IndexError:
        return None
