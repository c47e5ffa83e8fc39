"""Random programs that allocate, free and share tensors among streams, their runs, and a reference of their races.

A program is a list of steps, tuples of small ints. The reference knows no address: it takes the transitive closure of
what orders the commands, and the allocator's contract (Note [Reuse by contract] in `observe/lifetimes.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import flambeau
import flambeau as torch
from flambeau.runtime import system

SLOTS, STREAMS = 4, 3
KIB, MIB = 1 << 10, 1 << 20
SIZES = (512, 512, 1024, 5 * KIB, 300 * KIB, MIB, MIB + 512, 2 * MIB, 3 * MIB)
SMALL = MIB  # bytes of the largest tensor of the small pool
WEIGHTS = {
    "alloc": 20, "fill": 20, "copy": 10, "add": 4, "free": 16, "wait": 3, "record_stream": 4, "sync": 1, "empty_cache": 1,
    "sleep": 6,
}  # fmt: skip
SCHEDULES = (
    "earliest",
    "random:1",
    "random:2",
    "adversarial:0",
    "adversarial:1",
    "pct:0:3",
    "pct:1:2",
    "random:3",
)
PLACEMENTS = ("default", "pytorch", "random:1")


def program(seed: int, length: int = 30) -> list[tuple[str, int, int, int]]:
    """A random program. Every step means something whatever came before it, or nothing.

    Most uses of a tensor wait for the streams that used it before: what is left to go wrong is the reuse of memory.
    """
    rng = random.Random(seed)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    sizes = range(4) if rng.random() < 0.7 else range(len(SIZES))  # else of both pools
    careful, home = rng.choice((0.8, 0.95, 1.0)), rng.choice((0.5, 0.7))
    users: list[set[int]] = [set() for _ in range(SLOTS)]
    steps: list[tuple[str, int, int, int]] = []
    while len(steps) < length:
        name = rng.choices(names, weights)[0]
        first = rng.randrange(STREAMS if name in ("wait", "sync", "sleep") else SLOTS)
        second = rng.randrange(STREAMS) if rng.random() < home else 0
        third = rng.choice(sizes) if name == "alloc" else rng.randrange(SLOTS)
        if name == "alloc":
            users[first] = {second} if rng.random() < 0.6 else set()
        if name in ("fill", "copy", "add"):
            if rng.random() < careful:
                others = users[first] | (users[third] if name != "fill" else set())
                steps += [("wait", second, other, 0) for other in sorted(others - {second})]
            users[first].add(second)
            if name != "fill":
                users[third].add(second)
        steps.append((name, first, second, third))
    return steps


@dataclass
class Tensor:
    """A tensor of the reference. `uses` are the commands that read or write it, `writes` those that write it."""

    owner: int
    size: int
    alloc: int  # the node of its allocation
    uses: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    recorded: set[int] = field(default_factory=set)  # streams
    events: list[int] = field(default_factory=list)  # the nodes that its allocator waits for
    freed: int | None = None  # the node of its free
    gone: int | None = None  # the node of an empty_cache that has given its memory back

    @property
    def pool(self) -> tuple[int, bool]:
        return self.owner, self.size <= SMALL


class Reference:
    """The races of a program. Nodes are steps, `before[n]` the set of nodes that come before node n in every run."""

    def __init__(self, steps: list[tuple[str, int, int, int]]) -> None:
        self.before: list[frozenset[int]] = []
        self.last: list[frozenset[int]] = [frozenset()] * STREAMS  # what a stream's next command comes after
        self.host: frozenset[int] = frozenset()
        self.stream: dict[int, int] = {}  # of each command
        self.tensors: list[Tensor] = []
        self.slots: list[Tensor | None] = [None] * SLOTS
        for step in steps:
            getattr(self, step[0])(*step[1:])

    def node(self, stream: int | None = None) -> int:
        """A new node: a command or a mark of a stream, or a step of the host."""
        number = len(self.before)
        past = self.host if stream is None else self.host | self.last[stream]
        self.before.append(past)
        if stream is not None:
            self.last[stream] = past | {number}
        return number

    # -- steps ----------------------------------------------------------------------------------------
    def alloc(self, slot: int, stream: int, size: int) -> None:
        self.free(slot, 0, 0)
        self.slots[slot] = Tensor(stream, SIZES[size], self.node(stream))
        self.tensors.append(self.slots[slot])

    def free(self, slot: int, _: int, __: int) -> None:
        tensor = self.slots[slot]
        if tensor is not None:
            tensor.events = [self.node(stream) for stream in sorted(tensor.recorded)]
            tensor.freed = self.node()
        self.slots[slot] = None

    def fill(self, slot: int, stream: int, _: int) -> None:
        self._use(stream, [slot], [])

    def copy(self, slot: int, stream: int, source: int) -> None:
        if self.is_written(source) and self.slots[slot] is not None and slot != source:
            self._use(stream, [slot], [source])

    def add(self, slot: int, stream: int, source: int) -> None:
        if self.is_written(source) and self.is_written(slot) and slot != source:
            self._use(stream, [slot], [source])

    def is_written(self, slot: int) -> bool:
        return self.slots[slot] is not None and bool(self.slots[slot].writes)

    def _use(self, stream: int, writes: list[int], reads: list[int]) -> None:
        if any(self.slots[slot] is None for slot in writes):
            return
        number = self.node(stream)
        self.stream[number] = stream
        for slot in writes:
            self.slots[slot].writes.append(number)
        for slot in {*writes, *reads}:
            self.slots[slot].uses.append(number)

    def wait(self, later: int, earlier: int, _: int) -> None:
        if later != earlier:
            mark = self.node(earlier)
            self.last[later] |= self.before[mark] | {mark}
            self.node(later)

    def record_stream(self, slot: int, stream: int, _: int) -> None:
        if self.slots[slot] is not None and stream != self.slots[slot].owner:
            self.slots[slot].recorded.add(stream)

    def sync(self, stream: int, _: int, __: int) -> None:
        self.host |= self.last[stream]

    def sleep(self, stream: int, _: int, __: int) -> None:
        self.node(stream)

    def empty_cache(self, *_: int) -> None:
        """What a pool has goes back for sure only if none of it is in use."""
        live = {tensor.pool for tensor in self.slots if tensor is not None}
        number = self.node()
        for tensor in self.tensors:
            if tensor.freed is not None and tensor.gone is None and tensor.pool not in live:
                tensor.gone = number

    # -- answers --------------------------------------------------------------------------------------
    def conflicts(self) -> bool:
        """Whether two uses of one tensor conflict and nothing orders them."""
        return any(
            earlier < later
            and earlier not in self.before[later]
            and (earlier in t.writes or later in t.writes)
            for t in self.tensors
            for earlier in t.uses
            for later in t.uses
        )

    def reuses(self) -> bool:
        """Return True if the contract lets a tensor reuse memory whose former use is not ordered before a write to it."""
        return any(
            use not in self.before[write]
            for new in self.tensors
            for old in self.tensors
            if self._may_follow(old, new)
            for use in old.uses
            if not any(use in self.before[event] for event in old.events)
            for write in new.writes
        )

    def find_captured_blocks(self) -> bool:
        """The same of memory that a stream takes over from another one which it waits for (reuse by order)."""
        return any(
            use not in self.before[write]
            for new in self.tensors
            for old in self.tensors
            if old.owner != new.owner and old.pool[1] == new.pool[1] and self._precedes(old, new)
            if all(self.stream[use] == old.owner and use in self.before[new.alloc] for use in old.uses)
            for use in old.uses
            for write in new.writes
        )

    def _may_follow(self, old: Tensor, new: Tensor) -> bool:
        return old.pool == new.pool and self._precedes(old, new)

    def _precedes(self, old: Tensor, new: Tensor) -> bool:
        return old.freed is not None and old.freed < new.alloc and (old.gone is None or old.gone > new.alloc)


@dataclass
class Outcome:
    """What a run gave: the values of all tensors in the end, and its certificate if it was watched."""

    values: list[object]
    certificate: object


def run(
    steps: list[tuple[str, int, int, int]],
    schedule: str = "earliest",
    placement: str = "default",
    races: str = "off",
    past: int = 0,
) -> Outcome:
    """Run a program on one virtual GPU. past: a seed of what earlier code has left in the cache; 0: nothing."""
    with flambeau.virtual(devices=1, schedule=schedule, placement=placement, races=races):
        streams = [torch.cuda.default_stream(), *[torch.cuda.Stream() for _ in range(STREAMS - 1)]]
        leave_cache(streams, past)
        slots: list = [None] * SLOTS
        written = [False] * SLOTS
        log = torch.zeros(len(steps), 2).pin_memory()
        for number, (name, first, second, third) in enumerate(steps):
            if name == "alloc":
                slots[first] = None
                with torch.cuda.stream(streams[second]):
                    slots[first] = torch.empty(SIZES[third] // 4, device="cuda")
                written[first] = False
            elif name == "free":
                slots[first] = None
            elif name in ("fill", "copy", "add"):
                with torch.cuda.stream(streams[second]):
                    use(name, slots, written, first, third, number, log[number])
            elif name == "wait" and first != second:
                streams[first].wait_stream(streams[second])
            elif name == "record_stream" and slots[first] is not None:
                slots[first].record_stream(streams[second])
            elif name == "sync":
                streams[first].synchronize()
            elif name == "sleep":
                with torch.cuda.stream(streams[first]):
                    torch.cuda._sleep(100_000)
            elif name == "empty_cache":
                torch.cuda.empty_cache()
        torch.cuda.synchronize()
        values = [
            x.tolist() if x is not None and filled else None for x, filled in zip(slots, written, strict=True)
        ]
        certificate = None if races == "off" else system.accelerator().detector.certificate()
        return Outcome([values, log.tolist()], certificate)


def leave_cache(streams: list, past: int) -> None:
    """Leave free blocks of many sizes to each stream, and wait for all work."""
    rng = random.Random(past)
    for stream in streams if past else ():
        with torch.cuda.stream(stream):
            kept = [torch.empty(rng.choice(SIZES) // 4, device="cuda") for _ in range(12)]
            del kept[:: rng.choice((1, 2, 3))]
    torch.cuda.synchronize()


def use(name: str, slots: list, written: list[bool], first: int, third: int, number: int, log) -> None:
    """A command of the current stream on all of a tensor, and a look at what it has become.

    Those with another tensor repeat or cut it.
    """
    target, source = slots[first], slots[third]
    if target is None:
        return
    if name == "fill":
        target.fill_(number + 1.0)
    elif first == third or source is None or not written[third] or (name == "add" and not written[first]):
        return
    else:
        n = min(len(target), len(source))
        (target[:n].copy_ if name == "copy" else target[:n].add_)(source[:n])
        if name == "copy" and n < len(target):
            target[n:].fill_(number + 1.0)
    written[first] = True
    log[:1].copy_(target[:1], non_blocking=True)
    log[1:].copy_(target[-1:], non_blocking=True)
