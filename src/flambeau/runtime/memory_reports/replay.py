"""Replay: how an allocator with other settings, or on another device, would serve a recorded trace.

A trace is a list of `Event`s, from this process's history or from a snapshot file, PyTorch's own included. It is
played on a real `CachingAllocator` over a driver that has addresses and a capacity, and nothing else. Snapshot
files do not say which waits ordered streams, so their replays move no memory between streams; this process's
history does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from flambeau.core.device import device
from flambeau.core.errors import OutOfMemoryError
from flambeau.core.host.gc_pause import without_collections
from flambeau.driver.protocol import DeviceProperties, Driver
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import MIB, Policy
from flambeau.runtime.memory.allocator_statistics import ALL, ALLOCATED_BYTES, RESERVED_BYTES
from flambeau.runtime.memory.blocks import Block
from flambeau.runtime.memory.private_pool import NOBODY, PrivatePool


class Event(NamedTuple):
    """One request of a trace. `key` identifies the memory from its "alloc" to its "free"; `nbytes` was requested on
    `stream`.

    `pool` is the number of the private pool, a MemPool's or a CUDA graph's; 0 for none. After an "order", later
    work of `stream` is ordered after the work enqueued so far on the stream `key`. After an "end", the private
    pool is destroyed.
    """

    action: str
    key: int
    nbytes: int = 0
    stream: int = 0
    pool: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. Sizes in bytes.

    Attributes:
        failed: The number of the event that found no memory, and its size; None if all succeeded.
    """

    policy: Policy
    capacity: int
    events: int
    peak_allocated: int
    peak_reserved: int
    device_calls: int
    retries: int
    failed: Event | None = None
    failed_at: int | None = None

    @property
    def fits(self) -> bool:
        return self.failed is None


class _TraceNames:
    """The streams and MemPools that the events of a trace name by numbers. Each is created at its first use."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams: dict[int, Any] = {}
        self._pools: dict[int, PrivatePool | None] = {0: None}

    def stream(self, number: int) -> Any:
        stream = self._streams.get(number)
        if stream is None:
            handle = len(self._streams) + 1  # never 0
            queue = self._context.orders.queue(handle)
            stream = SimpleNamespace(handle=handle, context=self._context, queue=queue)
            self._streams[number] = stream
        return stream

    def pool(self, number: int) -> PrivatePool | None:
        if number not in self._pools:
            self._pools[number] = PrivatePool((0, len(self._pools)))
        return self._pools[number]


def play(
    events: Sequence[Event],
    capacity: int,
    policy: Policy | None = None,
    watch: Callable[[Sequence[Event]], Iterable[Event]] = iter,
) -> ReplayResult:
    """Replay a trace on a device of `capacity` bytes. The replay ends at the first request that finds no memory.

    Args:
        watch: Passes the events on, to show progress.
    """
    policy = Policy() if policy is None else policy
    context = Context(device("cuda", 0), 0, cast(Driver, _Space(capacity)), 0)
    allocator = CachingAllocator(context, policy)
    allocator.explains_oom = False
    allocator.stream_created()
    held: dict[int, Block] = {}
    names = _TraceNames(context)
    routed = 0
    failed_at = None
    for number, event in enumerate(watch(events)):
        if event.action == "free":
            if (block := held.pop(event.key, None)) is not None:
                allocator.free(block)
            continue
        if event.action == "end":
            if (gone := names.pool(event.pool)) is not None:
                allocator.release_private(gone.id)
            continue
        if event.pool != routed:
            routed = event.pool
            allocator.route(names.pool(routed))
        stream = names.stream(event.stream)
        if event.action == "order":
            context.orders.wait(stream.queue, context.orders.mark(names.stream(event.key).queue))
            continue
        try:
            held[event.key] = allocator.allocate(event.nbytes, stream)
            stream.queue.busy = True  # the stream has work that uses the memory
        except OutOfMemoryError:
            failed_at = number
            break
    peak = allocator.ledger().peak[ALL]
    return ReplayResult(
        policy,
        capacity,
        len(events),
        peak[ALLOCATED_BYTES],
        peak[RESERVED_BYTES],
        allocator.num_device_alloc + allocator.num_device_free,
        allocator.growth.num_retries,
        None if failed_at is None else events[failed_at],
        failed_at,
    )


class _Space:
    """A driver without a device: it only assigns addresses within a capacity."""

    observes_blocks = False

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._next = 1 << 40

    def mem_alloc(self, index: int, nbytes: int) -> int:
        if self._used + nbytes > self._capacity:
            raise OutOfMemoryError(f"{nbytes} bytes do not fit")
        ptr, self._next = self._next, self._next + nbytes
        self._sizes[ptr] = nbytes
        self._used += nbytes
        return ptr

    def mem_free(self, ptr: int) -> None:
        self._used -= self._sizes.pop(ptr)

    def range_page(self, index: int) -> int:
        return MIB

    def range_reserve(self, index: int, nbytes: int) -> int:
        ptr, self._next = self._next, self._next + nbytes
        return ptr

    def range_map(self, ptr: int, nbytes: int) -> None:
        if self._used + nbytes > self._capacity:
            raise OutOfMemoryError(f"{nbytes} bytes do not fit")
        self._used += nbytes

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        self._used -= nbytes

    def range_release(self, ptr: int) -> None:
        pass

    def device_properties(self, index: int) -> DeviceProperties:
        return DeviceProperties("replay", 0, 0, self._capacity, 1)

    def mem_info(self, index: int) -> tuple[int, int]:
        return self._capacity - self._used, self._capacity


# -- traces ---------------------------------------------------------------------------------------------------


def events_of(trace: Iterable[dict[str, Any]], live: Iterable[dict[str, Any]] | None = None) -> list[Event]:
    """Return the requests of a device's trace in a snapshot; `live` maps segments to the blocks alive at its end.

    Allocations from before the trace are derived from its frees and from the blocks alive at its end; they are first.
    A refused request becomes an allocation that is freed immediately: the program continued without it. A private
    pool without a segment at the end is deleted after its last event. If `live` is None, pools are not deleted.
    """
    events: list[Event] = []
    open_keys: dict[int, int] = {}  # address -> key of the open lifetime
    early: list[Event] = []
    count = 0
    wheres = _Wheres()
    with without_collections():
        for entry in trace:
            action = entry["action"]
            if action == "free_completed":
                key = open_keys.pop(entry.get("addr", 0), 0)
                if not key:
                    key = count = count + 1
                    early.append(Event("alloc", key, entry["size"], *_source(entry, "pool_id")))
                events.append(Event("free", key))
            elif action in ("alloc", "oom"):
                count += 1
                where = wheres.of(entry.get("frames"))
                events.append(Event("alloc", count, entry["size"], *_source(entry, "pool_id"), where))
                if action == "alloc":
                    open_keys[entry.get("addr", 0)] = count
                else:
                    events.append(Event("free", count))
            elif action == "order":
                events.append(Event("order", _stream(entry["after"]), 0, _stream(entry["stream"])))
    kept: set[int] = set()
    for segment in live or ():
        source = _source(segment, "segment_pool_id")
        kept.add(source[1])
        for block in segment["blocks"]:
            addr = block.get("address", 0)
            if block["state"] != "inactive" and addr not in open_keys:
                count += 1
                early.append(Event("alloc", count, block["requested_size"], *source))
    return early + events if live is None else _with_ends(early + events, kept)


def _with_ends(events: list[Event], kept: Container[int]) -> list[Event]:
    """Return the events, with an "end" after the last use of each private pool that is not in `kept`."""
    pools = {event.key: event.pool for event in events if event.pool and event.pool not in kept}
    if not pools:
        return events
    last = {
        pools[event.key]: n
        for n, event in enumerate(events)
        if event.key in pools and event.action != "order"
    }
    ends = {n: Event("end", 0, pool=pool) for pool, n in last.items()}
    found: list[Event] = []
    for n, event in enumerate(events):
        found.append(event)
        if n in ends:
            found.append(ends[n])
    return found


def _source(found: dict[str, Any], pool: str) -> tuple[int, int]:
    """Return the stream of an event, and its pool's id as one int."""
    high, low = found.get(pool) or NOBODY
    return _stream(found["stream"]), int(high) << 64 | int(low)


def _stream(stream: Any) -> int:
    return int(stream or 0)


class _Wheres:
    """A cache of the texts of call stacks that requested memory: equal stacks are usually one list object."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, frames: Sequence[dict[str, Any]] | None) -> str:
        found = self._known.get(id(frames))
        if found is None:
            found = self._known[id(frames)] = _where(frames or ())
        return found


def _where(frames: Sequence[dict[str, Any]]) -> str:
    for frame in frames:
        if str(frame["filename"]).endswith(".py"):
            return f"{frame['filename']}:{frame['line']}"
    return ""
