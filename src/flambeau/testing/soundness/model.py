"""`Model`: the effects of a program on memory and their order, by CUDA's and PyTorch's rules alone.

The race detector is compared with this model, which therefore shares no code with it. Every access of memory is a node.
The set of nodes that happen before a node is an int with one bit for each, so it is the transitive closure of program
order and synchronization by construction. Memory is a `Life`: one allocation, from its request to its release. The
bytes of an access are an int, too, with one bit for each byte.

# Note [The allocator's contract]
An address is not part of the contract of a caching allocator. Memory that was allocated on a stream and released may
serve any later request of the same stream and pool. An access of the first allocation therefore conflicts with an
access of the later one, unless the program, `record_stream` or `empty_cache` orders them. `empty_cache` waits for the
users of segments without live memory. Placement of blocks is not part of the contract, so this orders accesses only if
the whole pool is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

SMALL = 1 << 20  # bytes: larger requests are served from other segments
ITEMSIZE = {"float32": 4, "float16": 2, "int64": 8}
CASTS = "casts"  # autocast's cache, as the state that a `Touch` queries or changes


class Invalid(Exception):
    """The error raised if a step does not fit the state after the earlier steps."""


class Access(NamedTuple):
    """A node's use of one allocation: the bytes, and whether the node changes them."""

    node: int
    mask: int
    writes: bool


class ModelRace(NamedTuple):
    """Two conflicting nodes that are not ordered.

    Attributes:
        kind: "memory"; "reuse" (of released memory); "host"; or "array": the host uses pinned memory through an array
            of another library, which no driver observes.
    """

    first: int
    second: int
    kind: str


@dataclass(eq=False, slots=True)
class Life:
    """One allocation.

    Attributes:
        pool: Later allocations with an equal pool may reuse this memory after its release. None for pinned memory,
            which the allocator reuses only after its copies.
        protected: Nodes that are over before the allocator reuses the memory: it waits for them, or the host did.
        settled: True if the allocator has waited for all nodes.
        line: The step that requested it.
        version: Number of changes by the program.
        after: The step that released it, and the steps that happen before that in every run.
    """

    nbytes: int
    pool: tuple[object, ...] | None
    born: int
    freed: int = 0
    protected: int = 0
    settled: bool = False
    written: int = 0
    line: int = 0
    after: int = 0
    version: int = 0
    accesses: list[Access] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ModelStorage:
    """The memory that tensors share. `recorded` contains the streams that `record_stream` named."""

    life: Life
    device: int  # -1: the CPU
    refs: int = 0
    recorded: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, eq=False)
class ModelView:
    """A tensor: a part of a storage.

    Attributes:
        offset, strides: In elements.
        kind: "tensor" or "array" (NumPy's).
        weight: True if it is a leaf that requires a gradient, whose casts autocast caches.
        values: The values of an index tensor.
    """

    storage: ModelStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "tensor"
    weight: bool = False
    values: tuple[int, ...] | None = None

    @property
    def device(self) -> int:
        return self.storage.device

    @property
    def numel(self) -> int:
        return int(np.prod(self.shape))

    @property
    def is_ordinary(self) -> bool:
        """Return True if every kind of step may read and change the tensor."""
        return self.kind == "tensor" and not self.weight and self.values is None

    @property
    def contiguous(self) -> bool:
        return self.strides == contiguous_strides(self.shape)

    @property
    def expanded(self) -> bool:
        """Return True if elements share memory."""
        return 0 in self.strides

    @property
    def mask(self) -> int:
        return byte_mask(self.offset, self.shape, self.strides, ITEMSIZE[self.dtype])

    def at(self, rows: Iterable[int]) -> int:
        """Return the bytes of some rows (the first dimension)."""
        mask, step, size = 0, self.strides[0], ITEMSIZE[self.dtype]
        for row in rows:
            mask |= byte_mask(self.offset + row * step, self.shape[1:], self.strides[1:], size)
        return mask

    def same_place(self, other: ModelView) -> bool:
        return self.storage is other.storage and (self.offset, self.shape, self.strides, self.dtype) == (
            other.offset, other.shape, other.strides, other.dtype,
        )  # fmt: skip

    def overlaps(self, other: ModelView) -> bool:
        return self.storage is other.storage and bool(self.mask & other.mask)


@dataclass(eq=False, slots=True)
class ModelGraph:
    """A CUDA graph: its nodes as (stream, accesses, order within the graph, line), and the nodes before a launch."""

    number: int
    origin: str
    nodes: list[tuple[list[tuple[Life, int, bool]], int, int]] = field(default_factory=list)
    outer: list[Life] = field(default_factory=list)  # the program's allocations that the graph uses
    launched: int = 0  # bits of all nodes of earlier launches and of their predecessors


@dataclass(eq=False, slots=True)
class Host:
    """A host thread or a rank.

    Attributes:
        known: The nodes that happen before its next step.
        calls: The lines of steps, its own and others', that happen before its next step.
    """

    number: int
    known: int = 0
    calls: int = 0
    names: dict[str, ModelView] = field(default_factory=dict)
    ended: bool = False


class Touch(NamedTuple):
    """A read or a change of the state of a thread, a queue, a flag or autocast's cache.

    Attributes:
        calls: The lines that happen before it in every run.
        line: Its own line; None for after all others.
    """

    what: str
    host: Host
    calls: int
    line: int | None


class Model:
    """The state after the steps so far, with its races and uncertainties.

    Attributes:
        races: The unordered conflicting pairs, in the order of their second nodes.
        doubtful: Pairs that depend on placement: memory of a pool that was wholly free at an `empty_cache`.
        withheld: Reasons, other than races, that rule out a certificate.
        is_judged: True if the model covers all steps.
        meets: True if a rank's collective happens after the other rank's earlier work. A rank that does not wait on the
            host may have continued before the other one joined.
        conservative: True if memory was released, while threads run, before its thread waited for its uses. A detector
            may then withhold the certificate because another thread allocates, whatever it does with the memory.
        line: The line of the next nodes; any number.
    """

    def __init__(self, streams: dict[str, int]) -> None:
        # stream -> bits of the nodes that happen before its next command
        self.streams = dict.fromkeys(streams, 0)
        self.device_of = streams
        self.events: dict[str, int] = {}  # by name: the nodes before its latest record
        self.hosts = {0: Host(0)}
        self.host = self.hosts[0]
        self.here = "main"
        self.before: list[int] = []
        self.lines: list[int] = []
        self.on_host: list[bool] = []
        self.uses: list[list[tuple[Life, int, bool]]] = []
        self.copies: set[int] = set()
        self.arrays: set[int] = set()  # nodes of the host that no driver sees
        self.races: list[ModelRace] = []
        self.doubtful: list[ModelRace] = []
        self.kept: list[Life] = []  # shown by the program's end, without a name
        self.withheld: set[str] = set()
        self.conservative = False
        self.is_judged = True
        self.line = 0
        self.graphs: dict[str, ModelGraph] = {}
        self.capture: ModelGraph | None = None
        # stream -> bits of the graph's nodes that happen before its next command
        self.captured: dict[str, int] = {}
        self.casts: dict[int, ModelView] | None = None  # autocast's cache
        self.pools: dict[tuple[object, ...], list[Life]] = {}
        self.queues: dict[str, list[tuple[int, int, ModelView]]] = {}  # messages and the senders' views
        self.flag: tuple[int, int] | None = None  # (nodes, lines) that happen before it is set
        self.questions: list[Touch] = []  # accesses that query shared state
        self.changes: list[Touch] = []
        self.ranks = False
        self.meets = False
        self.losses: dict[tuple[int, str], Any] = {}  # the values that autograd saves, by host and name
        self.works: list[ModelStorage] = []  # the works of collectives that the program has not waited for
        self.recorders: dict[
            str, list[tuple[Host, int]]
        ] = {}  # by event: who used it since its record, itself first
        self.users: dict[str, tuple[Host, int]] = {}  # by stream: who used it last, at which step
        self._clock = 0
        self._captures = 0

    def verdict(self) -> tuple[bool, frozenset[str]]:
        """Return (True if there are races, reasons to withhold), after the host has read the remaining values."""
        left = [v for host in self.hosts.values() for v in host.names.values() if v.device >= 0]
        unwritten = any(view.mask & ~view.storage.life.written for view in left)
        open_questions = {each.what == CASTS for each in self.questions if self._depends_on_timing(each)}
        found = {"unwritten": unwritten, "asking": False in open_questions, "casts": True in open_questions}
        return bool(self.races), frozenset(
            self.withheld | {reason for reason, holds in found.items() if holds}
        )

    # -- questions between threads ----------------------------------------------------------------------
    def touch(self, what: str) -> Touch:
        """Return this host's access, at this point, to the state of a thread, a queue or a flag."""
        return Touch(what, self.host, self.host.calls, self.line)

    def _depends_on_timing(self, question: Touch) -> bool:
        """Return True if a change by another host is ordered neither before the query nor after it."""
        running = [host for host in self.hosts.values() if host.number and not host.ended]
        ends = [Touch("thread", host, host.calls, None) for host in running]
        return any(
            change.what == question.what
            and change.host is not question.host
            and not _is_before(change, question)
            and not _is_before(question, change)
            for change in [*self.changes, *ends]
        )

    # -- names ------------------------------------------------------------------------------------------
    def __getitem__(self, name: str) -> ModelView:
        try:
            return self.host.names[name]
        except KeyError:
            raise Invalid(f"{name} is not there") from None

    def tensor(self, name: str, device: int | None = None) -> ModelView:
        """Return an ordinary tensor on a device, by default the current one."""
        view = self[name]
        need(view.is_ordinary and view.device == (self.device if device is None else device))
        return view

    def bind(self, name: str, view: ModelView) -> None:
        """Bind a name to another tensor, so that the former tensor loses a reference."""
        view.storage.refs += 1
        before = self.host.names.get(name)
        self.host.names[name] = view
        if before is not None:
            self.unref(before.storage)

    def drop(self, name: str) -> None:
        storage = self[name].storage
        del self.host.names[name]
        self.unref(storage)

    def unref(self, storage: ModelStorage) -> None:
        storage.refs -= 1
        if not storage.refs:
            self.release(storage)

    def release(self, storage: ModelStorage) -> None:
        life = storage.life
        self._clock += 1
        life.freed, life.after = self._clock, self.host.calls | 1 << self.line
        life.protected |= self.host.known  # an allocation that reuses the memory follows the release
        for stream in storage.recorded:
            life.protected |= self.streams[stream] if self.is_in_order(self.users.get(stream)) else 0
        if (
            len(self.hosts) > 1 and not self.ranks
        ):  # what was allocated meanwhile may be there later in another run
            self.conservative |= any(not self.host.known >> access.node & 1 for access in life.accesses)
            for other in self.pools.get(life.pool or (), ()):
                if other.born < life.freed and self._may_reuse(other, life):
                    self.races += self._meetings(life, other)

    # -- memory -----------------------------------------------------------------------------------------
    @property
    def device(self) -> int:
        return self.device_of[self.here]

    def allocate(
        self, shape: tuple[int, ...], dtype: str = "float32", stream: str | None = None, weight: bool = False
    ) -> ModelView:
        """Return a new contiguous tensor in memory of a stream, by default the current one."""
        stream = stream or self.here
        need(self.capture is None or stream in self.captured)
        nbytes = int(np.prod(shape)) * ITEMSIZE[dtype]
        pool = (self.capture.number if self.capture else 0, stream, nbytes > SMALL)
        return ModelView(
            ModelStorage(self._begin(nbytes, pool), self.device_of[stream]), 0, shape, contiguous_strides(shape), dtype,
            weight=weight,
        )  # fmt: skip

    def temporary(self, shape: tuple[int, ...], dtype: str = "float32") -> ModelView:
        """Return a new tensor that no name will have; release its storage after its last use."""
        view = self.allocate(shape, dtype)
        view.storage.refs = 1
        return view

    def new_pinned(self, shape: tuple[int, ...], dtype: str = "float32") -> ModelView:
        life = self._begin(int(np.prod(shape)) * ITEMSIZE[dtype], None)
        return ModelView(ModelStorage(life, -1), 0, shape, contiguous_strides(shape), dtype)

    def _begin(self, nbytes: int, pool: tuple[object, ...] | None) -> Life:
        self._clock += 1
        life = Life(nbytes, pool, self._clock, line=self.line)
        if pool is not None:
            self.pools.setdefault(pool, []).append(life)
        return life

    def settle(self) -> None:
        """Release the allocator's cached memory after waiting for its users. See Note [The allocator's contract]."""
        for pool, lives in self.pools.items():
            if pool[0] == 0 and all(life.freed for life in lives):
                for life in lives:
                    life.settled = True

    # -- commands ---------------------------------------------------------------------------------------
    def launch(
        self,
        reads: Iterable[ModelView | tuple[ModelView, int]] = (),
        writes: Iterable[ModelView | tuple[ModelView, int]] = (),
        stream: str | None = None,
        copies: bool = False,
    ) -> None:
        """Enqueue a command. A part of a tensor is a pair (tensor, bytes). `copies` means that it moves bytes
        unchanged.
        """
        stream = stream or self.here
        uses = [(v.storage.life, m, False) for v, m in map(_with_mask, reads)]
        uses += [(v.storage.life, m, True) for v, m in map(_with_mask, writes)]
        for life, _, writes in uses:
            life.version += writes
        if self.capture is not None:
            self._record(stream, uses)
            return
        self.used_by_host(stream)
        self.streams[stream] |= self.host.known
        self.streams[stream] |= 1 << self._node(uses, self.streams[stream], self.line)
        if copies:
            self.copies.add(len(self.before) - 1)

    def used_by_host(self, stream: str) -> None:
        """Record that this host enqueues work on a stream. Hosts that do so must be ordered with each other."""
        if not self.is_in_order(self.users.get(stream)):
            self.withheld.add("threads")
        self.users[stream] = (self.host, self.line)

    def is_in_order(self, use: tuple[Host, int] | None) -> bool:
        """Return True if a host's step, if there is one, happens before this host's next step in every run."""
        return use is None or use[0] is self.host or bool(self.host.calls >> use[1] & 1)

    def host_access(self, view: ModelView, writes: bool) -> None:
        """Record that the host reads or writes pinned memory now, through a tensor or an array."""
        if view.kind == "array":
            self.arrays.add(len(self.before))
        node = self._node([(view.storage.life, view.mask, writes)], self.host.known, self.line, on_host=True)
        self.host.known |= 1 << node

    def export(self, view: ModelView) -> None:
        """Record that an array shows pinned memory. If a copy may still write it, reads are not detected."""
        for access in view.storage.life.accesses:
            if access.writes and not self.host.known >> access.node & 1:
                self.withheld.add("export")

    def _node(self, uses: list[tuple[Life, int, bool]], before: int, line: int, on_host: bool = False) -> int:
        node = len(self.before)
        self.before.append(before)
        self.lines.append(line)
        self.on_host.append(on_host)
        self.uses.append(uses)
        if any(not writes and life.pool and mask & ~life.written for life, mask, writes in uses):
            self.withheld.add("unwritten")
        for life, mask, writes in uses:
            life.written |= mask if writes else 0
            access = Access(node, mask, writes)
            self.races += self._conflicts(life, access)
            self.races += self._reuses(life, access)
            life.accesses.append(access)
        return node

    def _conflicts(self, life: Life, new: Access) -> Iterator[ModelRace]:
        for old in life.accesses:
            if old.mask & new.mask and self._is_unordered(old, new):
                yield ModelRace(old.node, new.node, self._kind(old.node, new.node))

    def _kind(self, first: int, second: int) -> str:
        if first in self.arrays or second in self.arrays:
            return "array"
        return "host" if self.on_host[first] or self.on_host[second] else "memory"

    def _reuses(self, life: Life, new: Access) -> Iterator[ModelRace]:
        """Add the conflicts of memory reuse. See Note [The allocator's contract]."""
        if life.pool is None:
            return
        for other in self.pools[life.pool]:
            for ended, later in ((other, life), (life, other)):
                if not ended.freed or not self._may_reuse(later, ended):
                    continue
                for old in other.accesses:
                    kept = ended.protected >> (old if ended is other else new).node & 1
                    if not kept and self._is_unordered(old, new):
                        if ended.settled:
                            self.doubtful.append(ModelRace(old.node, new.node, "reuse"))
                        else:
                            yield ModelRace(old.node, new.node, "reuse")

    def _may_reuse(self, later: Life, ended: Life) -> bool:
        """Return True if an allocation may reuse the memory of a freed one, because it was requested after the free."""
        return later is not ended and (ended.freed < later.born or not ended.after >> later.line & 1)

    def _meetings(self, ended: Life, later: Life) -> Iterator[ModelRace]:
        """Yield the accesses of two allocations that no synchronization orders, in the order of one run."""
        for old in ended.accesses:
            for new in later.accesses:
                first, second = sorted((old, new))
                if not ended.protected >> old.node & 1 and self._is_unordered(first, second):
                    yield ModelRace(first.node, second.node, "reuse")

    def _is_unordered(self, old: Access, new: Access) -> bool:
        return (
            (old.writes or new.writes) and old.node != new.node and not self.before[new.node] >> old.node & 1
        )

    # -- order ------------------------------------------------------------------------------------------
    def wait(self, later: str, known: int) -> None:
        """Make a stream wait for nodes."""
        self.used_by_host(later)
        self.streams[later] |= known | self.host.known

    def nodes_before_next(self, stream: str) -> int:
        """Return the nodes that happen before the next command of a stream."""
        return self.streams[stream] | self.host.known

    def record(self, event: str, stream: str) -> None:
        """Record an event after the work of a stream so far."""
        need(
            self.is_in_order(self.users.get(stream))
            and all(map(self.is_in_order, self.recorders.get(event, ())))
        )
        self.events[event] = self.nodes_before_next(stream)
        self.recorders[event] = [(self.host, self.line)]

    def nodes_before_record(self, event: str) -> int:
        """Return the nodes before the event's latest record; none if there is no record."""
        users = self.recorders.setdefault(event, [])
        need(self.is_in_order(users[0] if users else None))
        users.append((self.host, self.line))
        return self.events.get(event, 0)

    def host_waits(self, known: int) -> None:
        self.host.known |= known

    def is_alone(self) -> bool:
        """Return True if no other host uses this host's devices now."""
        return self.ranks or all(host.ended or host is self.host for host in self.hosts.values())

    def synchronize(self, device: int) -> None:
        for stream, known in self.streams.items():
            if self.device_of[stream] == device:
                self.host.known |= known

    # -- graphs -----------------------------------------------------------------------------------------
    def begin_capture(self, origin: str) -> None:
        need(self.capture is None)
        self.synchronize(self.device_of[origin])
        self.settle()
        self._captures += 1
        self.capture = ModelGraph(self._captures, origin)
        self.captured = {origin: 0}

    def end_capture(self, name: str) -> None:
        """Store the captured graph under a name. Raises Invalid if a stream was not joined, or nothing was captured."""
        graph, self.capture = self.capture, None
        assert graph is not None
        need(graph.nodes)
        need(not any(known & ~self.captured[graph.origin] for known in self.captured.values()))
        self.graphs[name] = graph

    def _record(self, stream: str, uses: list[tuple[Life, int, bool]]) -> None:
        graph = self.capture
        assert graph is not None
        need(stream in self.captured)
        graph.outer += [life for life, _, _ in uses if life.pool is None or life.pool[0] == 0]
        graph.nodes.append((uses, self.captured[stream], self.line))
        self.captured[stream] |= 1 << (len(graph.nodes) - 1)

    def replay(self, graph: ModelGraph) -> None:
        """Launch a graph on the current stream. Launches of one graph run one after the other."""
        self.used_by_host(self.here)
        if any(life.freed for life in graph.outer):
            self.withheld.add("graph")
        begin = self.streams[self.here] | self.host.known | graph.launched
        numbers: list[int] = []
        for uses, inner, line in graph.nodes:
            before = begin
            for at, node in enumerate(numbers):
                before |= (inner >> at & 1) << node
            numbers.append(self._node(uses, before, line))
        graph.launched = begin
        for node in numbers:
            graph.launched |= 1 << node
        self.streams[self.here] |= graph.launched


def need(condition: object) -> None:
    """Raise Invalid unless a condition is true."""
    if not condition:
        raise Invalid


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@lru_cache(1 << 12)
def byte_mask(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes that a strided layout touches, as an int with one bit for each byte."""
    if strides == contiguous_strides(shape):
        return ((1 << int(np.prod(shape)) * itemsize) - 1) << offset * itemsize
    places = np.full((), offset)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + stride * np.arange(size)
    touched = np.zeros(int(places.max()) + 1, bool)
    touched[places.ravel()] = True
    packed = np.packbits(np.repeat(touched, itemsize), bitorder="little")
    return int.from_bytes(packed.tobytes(), "little")


def _with_mask(use: ModelView | tuple[ModelView, int]) -> tuple[ModelView, int]:
    return use if isinstance(use, tuple) else (use, use.mask)


def _is_before(first: Touch, second: Touch) -> bool:
    return first.line is not None and bool(second.calls >> first.line & 1)
