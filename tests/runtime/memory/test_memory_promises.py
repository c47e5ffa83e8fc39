"""What the caching allocator promises, checked after every step of random programs, over a driver that fails.

The model knows nothing of the allocator but its blocks' addresses. It keeps, for every byte range that was freed, who
used it until when; and which stream's work is ordered before which other's, by a graph of marks and waits.
FLAMBEAU_PROMISE_STEPS sets how many steps the long run makes.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver

from flambeau.core.errors import DriverError, OutOfMemoryError
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import Policy, policy_of
from flambeau.runtime.memory.allocator_statistics import FIGURES, POOLS
from flambeau.runtime.memory.blocks import Block
from flambeau.runtime.memory.history import Recording
from flambeau.runtime.memory.pending_frees import UseEvent
from flambeau.runtime.memory.private_pool import PrivatePool

STREAMS = (1, 2, 3, 4)
SIZES = (1, 512, 4096, 70_000, 400_000, MIB, MIB + 1, 3 * MIB, 5 * MIB, 9 * MIB, 12 * MIB, 25 * MIB)
EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
STEPS = int(os.environ.get("FLAMBEAU_PROMISE_STEPS", "1000000" if EXHAUSTIVE else "12000"))


class Order:
    """Which points of streams come before which: a graph, searched anew each time."""

    def __init__(self) -> None:
        self.marks: dict[int, list[int]] = {stream: [] for stream in STREAMS}  # numbers of points, in order
        self.edges: dict[int, list[int]] = {}  # point: points that come before it
        self.done: set[int] = set()  # points that the host has waited for
        self.count = 0

    def point(self, stream: int, *before: int) -> int:
        """A new point of a stream; it comes after the stream's others, and after `before`."""
        self.count += 1
        self.edges[self.count] = [*self.marks[stream][-1:], *before]
        self.marks[stream].append(self.count)
        return self.count

    def past(self, stream: int) -> set[int]:
        """All points before what the stream is given from now on."""
        found: set[int] = set()
        todo = [*self.marks[stream][-1:], *self.done]
        while todo:
            point = todo.pop()
            if point not in found:
                found.add(point)
                todo += self.edges[point]
        return found


class Life:
    """A freed range: its stream, the point of its last use, and whether others used it in ways that only it orders."""

    def __init__(
        self, begin: int, end: int, stream: int, point: int, shared: bool, waits: dict[int, int]
    ) -> None:
        self.begin, self.end = begin, end
        self.stream = stream
        self.point = point
        self.shared = shared
        self.waits = waits  # recorded uses: by stream, what its clock must have reached

    def within(self, block: Block) -> Life:
        """The part of it that a block covers."""
        begin, end = max(self.begin, block.ptr), min(self.end, block.ptr + block.size)
        return Life(begin, end, self.stream, self.point, self.shared, self.waits)


class Program:
    """One random program, checked after each step."""

    def __init__(self, seed: int, policy: Policy, placement: str = "default") -> None:
        self.rng = random.Random(seed)
        self.sizes = SIZES
        self.driver = FakeDriver(capacity=self.rng.choice([64, 128, 512]) * MIB)
        self.context = context_over(self.driver)
        self.allocator = CachingAllocator(self.context, policy, placement)
        self.streams = {handle: stream_of(self.context, handle) for handle in STREAMS}
        self.order = Order()
        self.live: dict[int, tuple[Block, int, bool, dict[int, Any]]] = {}
        self.past: list[Life] = []
        self.last = dict.fromkeys(STREAMS, 0)  # by stream, the point of its last work
        self.born: dict[int, tuple[int, list[Life]]] = {}  # by address: when, and who used the range before
        self.steps = [
            self.allocate, self.allocate, self.allocate, self.free, self.free, self.wait, self.wait, self.share,
            self.record, self.use, self.work, self.finish, self.synchronize, self.empty, self.fraction, self.fail,
            self.remember, self.route, self.give, self.give,
        ]  # fmt: skip
        if seed % 2:  # streams that hand memory around, and nothing that orders everything
            self.steps = (
                [self.allocate] * 6 + [self.free] * 6 + [self.wait] * 2 + [self.give] * 3 + [self.share]
            )
            self.driver.capacity = 1 << 40
            self.sizes = (MIB + 512, 2 * MIB, 3 * MIB, 4 * MIB)
        self.private = [PrivatePool((0, 1)), PrivatePool((0, 2), no_split=True)]

    def step(self) -> None:
        self.rng.choice(self.steps)()
        self.check()

    # -- steps --------------------------------------------------------------------------------------------
    def allocate(self) -> None:
        stream = self.rng.choice(STREAMS)
        nbytes = (
            self.rng.choice(self.sizes)
            if self.sizes is not SIZES or self.rng.random() < 0.7
            else self.rng.randrange(1, 14 * MIB)
        )
        figures = self.allocator.allocated_bytes()
        self.driver.wished = False
        try:
            block = self.allocator.allocate(nbytes, self.streams[stream])
        except OutOfMemoryError:
            assert self.allocator.allocated_bytes() == figures
            self.check_refusal(nbytes, stream)
            return
        except DriverError:
            return  # it was made to fail; what holds is checked as ever
        assert block.size >= nbytes and block.stream == stream
        before = self.check_reuse(block, stream)
        self.born[block.ptr] = self.order.count, before
        if any(
            life.shared for life in before
        ):  # its own stream relies on the program for that, and so by using it
            self.give(stream)
        self.live[block.ptr] = (block, stream, False, {})

    def check_reuse(self, block: Block, stream: int) -> list[Life]:
        """Every use that the range has seen is done before what the stream does with it. Those uses."""
        before = self.order.past(stream)
        left, ended = [], []
        for life in self.past:
            if life.end <= block.ptr or block.ptr + block.size <= life.begin:
                left.append(life)
                continue
            assert life.stream == stream or (life.point in before and not life.shared)
            for user, clock in life.waits.items():
                assert self.driver.done.get(user, 0) >= clock
            ended.append(life.within(block))
        self.past = left
        return ended

    def check_refusal(self, nbytes: int, stream: int) -> None:
        """Nothing of the stream's own that is free fits, and nothing is left that could be given back."""
        allocator = self.allocator
        size = allocator.policy.round_up(nbytes)
        segment = allocator.policy.segment_size(size)
        limit = self.driver.capacity if allocator.limit is None else allocator.limit
        assert self.driver.wished or self.driver.used + segment > min(limit, self.driver.capacity)
        free = allocator.free_blocks()
        for blocks in allocator.segments():
            pool = blocks[0].pool
            if pool.private is None and all(block in free for block in blocks):
                raise AssertionError("a free segment was kept")
        if allocator.policy.max_split == 0 and not allocator._thread_pools:
            kind = 1 if size <= MIB else 0
            mine = [b for b in free if b.stream == stream and b.pool.kind == kind and b.pool.private is None]
            assert all(block.size < size for block in mine)

    def pick(self) -> int | None:
        return self.rng.choice(list(self.live)) if self.live else None

    def free(self) -> None:
        ptr = self.pick()
        if ptr is None:
            return
        block, stream, shared, uses = self.live.pop(ptr)
        waits = {user: self.driver.clock.get(user, 0) for user in uses if user > 0}
        marks = {-user: when for user, when in uses.items() if user < 0}
        shared = shared or bool(uses)
        born, before = self.born.pop(ptr)
        point = self.order.point(stream) if shared else self.last[stream]
        life = Life(ptr, ptr + block.size, stream, point, shared, waits | marks)
        if point > born:
            self.past.append(life)
        else:  # nobody used it in this life
            self.past += before
        recorded = bool(uses)
        try:
            self.allocator.free(block)
        except DriverError:
            assert recorded  # its event could not be recorded: it waits forever
            life.waits = dict.fromkeys(waits, 1 << 60)

    def wait(self) -> None:
        one, other = self.rng.sample(STREAMS, 2)
        orders = self.context.orders
        mark = self.order.point(one)
        point = orders.mark(self.streams[one].queue)
        for _ in range(self.rng.randrange(3)):
            self.rng.choice([self.free, self.give])()
        orders.wait(self.streams[other].queue, point)
        self.order.point(other, mark)

    def give(self, stream: int = 0) -> None:
        """Work for a stream, which may use whatever is its own."""
        stream = stream or self.rng.choice(STREAMS)
        self.last[stream] = self.order.point(stream)
        self.streams[stream].queue.busy = True

    def share(self) -> None:
        ptr = self.pick()
        if ptr is not None:
            block, stream, _, uses = self.live[ptr]
            self.allocator.share(block)
            self.live[ptr] = (block, stream, True, uses)

    def record(self) -> None:
        ptr = self.pick()
        user = self.rng.choice(STREAMS)
        if ptr is not None and user != self.live[ptr][1]:
            self.allocator.record_stream(self.live[ptr][0], self.streams[user])
            self.live[ptr][3][user] = None

    def use(self) -> None:
        """record_use: a mark that was recorded already, not the work that comes later."""
        ptr = self.pick()
        user = self.rng.choice(STREAMS)
        if ptr is None or user == self.live[ptr][1] or user in self.live[ptr][3]:
            return
        event = self.driver.event_create(0, timing=False)
        self.driver.fail.discard("event_record")
        self.driver.event_record(event, user)
        self.allocator.record_use(self.live[ptr][0], UseEvent(self.context, event))
        self.live[ptr][3][-user] = max(self.driver.clock.get(user, 0), self.live[ptr][3].get(-user, 0))

    def work(self) -> None:
        self.driver.work(self.rng.choice(STREAMS))

    def finish(self) -> None:
        self.driver.finish(self.rng.choice(STREAMS))

    def synchronize(self) -> None:
        orders = self.context.orders
        if self.rng.random() < 0.5:
            stream = self.rng.choice(STREAMS)
            self.driver.finish(stream)
            self.order.done.add(self.order.point(stream))
            orders.host_wait(orders.mark(self.streams[stream].queue))
            return
        tick = orders.device_mark()
        for stream in STREAMS:
            self.driver.finish(stream)
            self.order.done.add(self.order.point(stream))
        orders.device_wait(0, tick)

    def empty(self) -> None:
        try:
            self.allocator.empty_cache()
        except DriverError:
            return
        free = self.allocator.free_blocks()
        for blocks in self.allocator.segments():
            assert blocks[0].pool.private is not None or any(block not in free for block in blocks)

    def fraction(self) -> None:
        self.allocator.set_memory_fraction(self.rng.choice([0.5, 1.0, 1.0]))

    def fail(self) -> None:
        if self.rng.random() < 0.5:
            self.driver.refuse = self.rng.randrange(3)
        else:
            self.driver.fail.add(self.rng.choice(["mem_free", "event_record"]))

    def remember(self) -> None:
        recording = Recording(max_entries=1000) if self.rng.random() < 0.5 else None
        self.allocator.record(recording)

    def route(self) -> None:
        self.allocator.route(self.rng.choice([None, None, *self.private]))

    # -- what holds after each ------------------------------------------------------------------------------
    def check(self) -> None:
        allocator = self.allocator
        spans = sorted((ptr, ptr + entry[0].size) for ptr, entry in self.live.items())
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(ptr % 512 == 0 for ptr in self.live)
        sizes = {}
        for blocks in allocator.segments():
            sizes[blocks[0].ptr] = sum(block.size for block in blocks)
            for left, right in pairwise(blocks):
                assert left.ptr + left.size == right.ptr and right.previous is left and left.next is right
        assert sizes == self.driver.sizes
        assert allocator.reserved_bytes() == self.driver.used
        self.check_figures()

    def check_figures(self) -> None:
        allocator = self.allocator
        live = {entry[0] for entry in self.live.values()}
        active = live | allocator.waiting()
        totals = {pool: dict.fromkeys(FIGURES, 0) for pool in POOLS}
        for blocks in allocator.segments():
            for pool in (POOLS[blocks[0].pool.kind], "all"):
                total = totals[pool]
                total["segment"] += 1
                total["reserved_bytes"] += sum(block.size for block in blocks)
                total["allocation"] += sum(block in live for block in blocks)
                total["allocated_bytes"] += sum(block.size for block in blocks if block in live)
                total["requested_bytes"] += sum(block.requested for block in blocks if block in live)
                total["active"] += sum(block in active for block in blocks)
                total["active_bytes"] += sum(block.size for block in blocks if block in active)
                if len(blocks) > 1:
                    total["inactive_split"] += sum(block not in active for block in blocks)
                    total["inactive_split_bytes"] += sum(b.size for b in blocks if b not in active)
        figures = allocator.ledger().figures()
        for figure in FIGURES:
            for pool in POOLS:
                found = figures[figure][pool]
                assert found["current"] == totals[pool][figure], (figure, pool)
                assert found["current"] == found["allocated"] - found["freed"]
                assert found["peak"] >= found["current"] >= 0

    def end(self) -> None:
        """Everything is given back, whatever happened."""
        self.driver.fail.clear()
        self.driver.refuse = 0
        self.allocator.route(None)
        for stream in STREAMS:
            self.driver.finish(stream)
        stuck = any(1 << 60 in life.waits.values() for life in self.past)
        for block, *_ in self.live.values():
            self.allocator.free(block)
        self.live = {}
        for private in self.private:
            self.allocator.release_private(private.id)
        self.allocator.empty_cache()
        assert stuck or not self.driver.sizes
        self.check()


POLICIES = ["", "max_split_size_mb:21", "roundup_power2_divisions:4", "garbage_collection_threshold:0.5"]
PLACED = [("", "pytorch"), ("", "random:1"), ("max_split_size_mb:21", "random:2")]


@pytest.mark.parametrize(("text", "placement"), [*[(text, "default") for text in POLICIES], *PLACED])
def test_random_programs_keep_every_promise(text: str, placement: str) -> None:
    each = 200
    for seed in range(max(STEPS // len(POLICIES) // each, 1)):
        program = Program(seed, policy_of(text), placement)
        try:
            for _ in range(each):
                program.step()
            program.end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} of {text!r}, {placement}: {error}") from error


def test_sixteen_threads_with_everything_going_on() -> None:
    """Streams that wait, MemPools, recordings and reports meanwhile: no block has two owners, and all come back."""
    driver = FakeDriver()
    context = context_over(driver)
    allocator = CachingAllocator(context)
    streams = [stream_of(context, handle) for handle in STREAMS]
    owners: dict[int, int] = {}
    failures: list[str] = []
    private = PrivatePool((0, 1))
    interval = sys.getswitchinterval()

    def run(seed: int) -> None:
        rng = random.Random(seed)
        mine: list[Block] = []
        stream = streams[seed % len(streams)]
        for _ in range(250):
            choice = rng.randrange(12)
            if choice == 0:
                context.orders.wait(stream.queue, context.orders.mark(rng.choice(streams).queue))
            elif choice == 1:
                allocator.route(rng.choice([None, private]))
            elif choice == 2 and seed == 0:
                allocator.record(rng.choice([None, Recording(max_entries=100)]))
            elif choice == 3 and seed == 1:
                allocator.ledger().figures()
                allocator.empty_cache()
            elif mine and choice < 8:
                block = mine.pop(rng.randrange(len(mine)))
                if owners.pop(block.ptr) != seed:
                    failures.append("somebody else has the block")
                allocator.free(block)
            else:
                block = allocator.allocate(rng.choice(SIZES), stream)
                if owners.setdefault(block.ptr, seed) != seed:
                    failures.append("handed out twice")
                if rng.random() < 0.1:
                    allocator.share(block)
                if rng.random() < 0.1:
                    allocator.record_stream(block, rng.choice(streams))
                mine.append(block)
        allocator.route(None)
        for block in mine:
            owners.pop(block.ptr)
            allocator.free(block)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures and not owners
    allocator.release_private(private.id)
    allocator.empty_cache()
    assert not driver.sizes
    assert all(value == 0 for row in allocator.ledger().current for value in row)
