"""Memory goes from stream to stream where recorded waits allow it, and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver

import flambeau as torch
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.stream_order import StreamClocks


class Machine:
    """An allocator and streams 1, 2, 3; `wait(a, b)`: stream a waits for all that b was given until now."""

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.context = context_over(self.driver)
        self.allocator = CachingAllocator(self.context)
        self.allocator.stream_created()
        self.streams = {handle: stream_of(self.context, handle) for handle in (1, 2, 3)}

    def allocate(self, nbytes: int, stream: int) -> Any:
        """A block, and work that uses it."""
        block = self.allocator.allocate(nbytes, self.streams[stream])
        self.work(stream)
        return block

    def work(self, stream: int) -> None:
        self.streams[stream].queue.busy = True

    def wait(self, waiter: int, other: int) -> None:
        self.context.orders.wait(
            self.streams[waiter].queue, self.context.orders.mark(self.streams[other].queue)
        )


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_block_freed_before_the_wait_is_taken_over(machine: Machine) -> None:
    block = machine.allocate(5 * MIB, 1)
    machine.allocator.free(block)
    machine.wait(2, 1)
    assert machine.allocate(5 * MIB, 2).ptr == block.ptr
    assert machine.allocator.reserved_bytes() == 20 * MIB
    assert not machine.driver.events  # nothing was asked of the device


def test_a_block_used_after_the_wait_is_not(machine: Machine) -> None:
    block = machine.allocate(15 * MIB, 1)
    machine.wait(2, 1)
    machine.work(1)
    machine.allocator.free(block)
    assert machine.allocate(15 * MIB, 2).ptr != block.ptr


def test_a_block_freed_after_the_wait_but_used_before_it_is(machine: Machine) -> None:
    block = machine.allocate(15 * MIB, 1)
    machine.wait(2, 1)
    machine.allocator.free(block)
    assert machine.allocate(15 * MIB, 2).ptr == block.ptr


def test_a_block_freed_after_a_wait_of_its_own_stream_comes_after_that(machine: Machine) -> None:
    """The stream may have waited for another that used the block in ways that nobody noticed."""
    block = machine.allocate(15 * MIB, 1)
    machine.wait(2, 1)
    machine.wait(1, 3)
    machine.allocator.free(block)
    assert machine.allocate(15 * MIB, 2).ptr != block.ptr
    machine.wait(3, 1)
    assert machine.allocate(15 * MIB, 3).ptr == block.ptr


def test_a_block_used_between_two_marks_comes_before_the_second_alone(machine: Machine) -> None:
    machine.allocator.free(machine.allocate(15 * MIB, 1))
    machine.wait(2, 1)
    block = machine.allocate(15 * MIB, 1)
    machine.wait(3, 1)
    machine.allocator.free(block)
    assert machine.allocate(15 * MIB, 2).ptr != block.ptr
    assert machine.allocate(15 * MIB, 3).ptr == block.ptr


def test_what_others_used_stays_with_its_stream_until_that_works(machine: Machine) -> None:
    machine.wait(2, 1)
    block = machine.allocate(15 * MIB, 1)
    machine.allocator.share(block)
    machine.allocator.free(block)
    machine.wait(2, 1)
    again = machine.allocator.allocate(15 * MIB, machine.streams[1])
    assert again.ptr == block.ptr
    machine.allocator.free(again)
    assert machine.allocate(15 * MIB, 2).ptr != block.ptr


def test_what_a_stream_did_not_use_keeps_who_did(machine: Machine) -> None:
    """2 takes a block of 1 over, uses it not, and gives it back: who knows 2 alone may not have it."""
    block = machine.allocate(15 * MIB, 1)
    machine.allocator.free(block)
    machine.wait(3, 2)
    machine.wait(2, 1)
    taken = machine.allocator.allocate(15 * MIB, machine.streams[2])
    assert taken.ptr == block.ptr
    machine.allocator.free(taken)
    assert machine.allocate(15 * MIB, 3).ptr != block.ptr


def test_a_block_that_another_stream_used_is_not(machine: Machine) -> None:
    block = machine.allocate(15 * MIB, 1)
    machine.allocator.share(block)
    machine.allocator.free(block)
    machine.wait(2, 1)
    assert machine.allocate(15 * MIB, 2).ptr != block.ptr
    again = machine.allocate(15 * MIB, 1)
    assert again.ptr == block.ptr  # its own stream may, as ever
    machine.allocator.free(again)  # a life that nobody else saw
    machine.wait(3, 1)
    assert machine.allocate(15 * MIB, 3).ptr == block.ptr


def test_waits_are_passed_on(machine: Machine) -> None:
    block = machine.allocate(15 * MIB, 1)
    machine.allocator.free(block)
    machine.wait(2, 1)
    machine.wait(3, 2)
    assert machine.allocate(15 * MIB, 3).ptr == block.ptr


def test_what_the_host_waited_for_is_everybodys(machine: Machine) -> None:
    block = machine.allocate(15 * MIB, 1)
    machine.allocator.free(block)
    orders = machine.context.orders
    orders.host_wait(orders.mark(machine.streams[1].queue))
    assert machine.allocate(15 * MIB, 3).ptr == block.ptr


def test_the_rest_of_a_block_taken_over_remembers_its_user(machine: Machine) -> None:
    machine.allocator.free(machine.allocate(9 * MIB, 1))
    machine.wait(3, 2)  # before 2 knows of 1
    machine.wait(2, 1)
    machine.allocate(5 * MIB, 2)
    machine.allocate(5 * MIB, 3)
    assert machine.allocator.reserved_bytes() == 40 * MIB


def test_joined_blocks_remember_both_users(machine: Machine) -> None:
    first, second = machine.allocate(5 * MIB, 1), machine.allocate(5 * MIB, 1)
    machine.allocator.free(first)
    machine.wait(2, 1)
    taken = machine.allocate(5 * MIB, 2)
    assert taken.ptr == first.ptr
    machine.allocator.free(taken)
    machine.work(1)
    machine.allocator.free(second)
    machine.wait(3, 2)  # knows 2, and what 2 knew of 1: not the second block's end
    machine.wait(2, 1)
    assert machine.allocate(12 * MIB, 2).ptr == first.ptr  # of both and the rest of the segment
    machine.allocate(8 * MIB, 3)
    assert machine.allocator.reserved_bytes() == 40 * MIB


def test_a_block_taken_over_but_not_used_may_go_back(machine: Machine) -> None:
    blocks = [machine.allocate(15 * MIB, 1) for _ in range(2)]
    for block in blocks:
        machine.allocator.free(block)
    machine.wait(2, 1)
    machine.allocate(15 * MIB, 2)
    machine.allocate(15 * MIB, 1)  # 1 knows nothing of 2, but nobody used the other block since
    assert machine.allocator.reserved_bytes() == 32 * MIB


def test_a_stream_that_is_only_asked_orders_nothing() -> None:
    with torch.virtual(devices=1):
        side = torch.cuda.Stream()
        x = torch.ones(4 * MIB, device="cuda")
        ptr = x.memory.ptr
        del x
        while not torch.cuda.current_stream().query():
            pass
        with torch.cuda.stream(side):
            assert torch.ones(4 * MIB, device="cuda").memory.ptr != ptr
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert torch.ones(4 * MIB, device="cuda").memory.ptr == ptr


def test_every_use_by_another_stream_is_noticed() -> None:
    """Whatever reads or writes on another stream: the memory stays with its own."""
    uses = [
        lambda x: x + 1, lambda x: x.add_(1), lambda x: x + x, lambda x: torch.neg(x), lambda x: x.cpu(),
        lambda x: x.copy_(torch.ones(1 << 20)), lambda x: x.zero_(), lambda x: x.sum(), lambda x: x[5:].mul_(2),
        lambda x: torch.cat([x, x]), lambda x: x.clone(), lambda x: torch.add(x, 1, out=x), lambda x: x.to("cuda:1"),
        lambda x: torch.zeros(1 << 20, device="cuda").copy_(x), lambda x: x.data_ptr(), lambda x: x.__dlpack__(), lambda x: x.untyped_storage().data_ptr(), lambda x: torch.fft.fft(x), lambda x: x.matmul(x), lambda x: x.resize_(1 << 21),
    ]  # fmt: skip
    for number, use in enumerate(uses):
        with torch.virtual(devices=2):
            side = torch.cuda.Stream()
            x = torch.ones(1 << 20, device="cuda")
            block = x.memory.block
            assert not block.shared
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                kept = use(x)
            assert block.shared or block.freed == 1 << 62, number  # now, or when it was freed
            del x, kept


def rotate(count: int, steps: int = 48) -> int:
    """A program whose steps go over `count` streams in turn: how many bytes it reserves at most."""
    streams = [torch.cuda.Stream() for _ in range(count)]
    weights = [torch.ones(256, 256, device="cuda") for _ in range(4)]
    rng = random.Random(7)
    before: Stream = torch.cuda.current_stream()
    for step in range(steps):
        stream = streams[step % count]
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            x = torch.ones(1024 + rng.randrange(200), 256, device="cuda")
            for weight in weights:
                x = torch.tanh(x @ weight)
            y = torch.zeros(3 << 20, device="cuda") + 1
            del x, y
        before = stream
    torch.cuda.synchronize()
    return torch.cuda.max_memory_reserved()


def rotate_and_rebind(count: int, steps: int = 48) -> int:
    """The same where names are bound anew, so that a step frees what the last one made; events are recorded in it."""
    streams = [torch.cuda.Stream() for _ in range(count)]
    weights = [torch.ones(256, 256, device="cuda") for _ in range(3)]
    rng = random.Random(7)
    event = torch.cuda.current_stream().record_event()
    for step in range(steps):
        with torch.cuda.stream(streams[step % count]) as stream:
            stream.wait_event(event)
            x = torch.ones(1024 + rng.randrange(200), 256, device="cuda")
            a = torch.tanh(x @ weights[0])
            b = torch.tanh(a @ weights[1])
            c = torch.tanh(b @ weights[2])
            y = torch.zeros(3 << 20, device="cuda") + 1
            event = stream.record_event()
    torch.cuda.synchronize()
    assert all(t.isfinite().all() for t in (a, b, c, x, y))
    return torch.cuda.max_memory_reserved()


@pytest.mark.parametrize("schedule", ["earliest", "random:1", "adversarial:2"])
@pytest.mark.parametrize("program", [rotate, rotate_and_rebind])
def test_a_program_that_rotates_over_streams_needs_no_more_than_on_one(
    program: Callable[[int], int], schedule: str
) -> None:
    with torch.virtual(devices=1):
        alone = program(1)
    with torch.virtual(devices=1, schedule=schedule, races="error"):
        four = program(4)
    assert four <= 1.05 * alone


GIVEN = [
    lambda x: x + 1, lambda x: x + x, lambda x: x + 1.5, lambda x: torch.neg(x), lambda x: x.add_(1), lambda x: x.add_(x),
    lambda x: torch.add(x, 1, out=x), lambda x: x.sum(), lambda x: x.max(0), lambda x: x @ x, lambda x: torch.cat([x, x]),
    lambda x: x.zero_(), lambda x: x.uniform_(), lambda x: torch.randperm(9, device="cuda"), lambda x: torch.fft.fft(x), lambda x: x.cpu(),
    lambda x: x.copy_(torch.ones(64)), lambda x: x.copy_(torch.ones(64).pin_memory(), non_blocking=True),
    lambda x: x[::2].copy_(torch.ones(32)), lambda x: x.to("cuda:1"),
    lambda x: x.resize_(1 << 20), lambda x: x.untyped_storage().resize_(1 << 20), lambda x: torch.cuda._sleep(100), lambda x: x.item() if x.numel() == 1 else x[0].item(),
    lambda x: x.sort(), lambda x: x.unique(), lambda x: x[x > 0], lambda x: x.to(torch.float16),
    lambda x: torch.cuda.nccl.all_reduce([x, torch.ones(64, device="cuda:1")]), lambda x: x.requires_grad_().exp().sum().backward(),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(GIVEN)))
def test_whatever_gives_a_stream_work_says_so(number: int) -> None:
    """Or memory would pass to streams that know an older mark."""
    with torch.virtual(devices=2):
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                x = torch.ones(64, device="cuda")
                stream.record_event()
                assert not stream.queue.busy
                GIVEN[number](x)
                assert stream.queue.busy


def test_an_optimizer_gives_its_stream_work() -> None:
    with torch.virtual(devices=1):
        x = torch.ones(64, device="cuda", requires_grad=True)
        x.grad = torch.ones(64, device="cuda")
        optimizer, stream = torch.optim.SGD([x], lr=0.1, foreach=True), torch.cuda.current_stream()
        stream.record_event()
        assert not stream.queue.busy
        optimizer.step()
        assert stream.queue.busy


def test_a_graph_gives_its_stream_work() -> None:
    with torch.virtual(devices=1):
        graph, x = torch.cuda.CUDAGraph(), torch.ones(64, device="cuda")
        with torch.cuda.graph(graph):
            x.add_(1)
        stream = torch.cuda.current_stream()
        stream.record_event()
        assert not stream.queue.busy
        graph.replay()
        assert stream.queue.busy


def test_orders_forget_streams_that_ended() -> None:
    orders = StreamClocks()
    one, two = orders.queue(1), orders.queue(2)
    orders.wait(two, orders.mark(one))
    orders.host_wait(orders.mark(one))
    assert orders.awaited_time(2, 1, 0) == 2
    orders.forget(1)
    assert orders.awaited_time(2, 1, 0) == orders.awaited_time(3, 1, 0) == 0


def test_record_use_waits_for_its_event_alone() -> None:
    with torch.virtual(devices=1):
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        x = torch.ones(4 * MIB, device="cuda")
        ptr = x.memory.ptr
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sum()
            event.record()
            x.record_use(event)
            event.record()  # anew: the use is what it was
            torch.cuda._sleep(10**9)
        del x
        event.query()
        torch.cuda.current_stream().synchronize()
        while not torch.cuda.current_stream().query():
            pass
        torch.cuda._sleep(10**7)
        torch.cuda.current_stream().synchronize()
        assert not side.query()
        assert torch.ones(4 * MIB, device="cuda").memory.ptr == ptr
        with pytest.raises(RuntimeError, match="never recorded"):
            torch.ones(1, device="cuda").record_use(torch.cuda.Event())
        with pytest.raises(TypeError, match=r"must be torch\.cuda\.Event"):
            torch.ones(1, device="cuda").record_use(side)
        with pytest.raises(NotImplementedError):
            torch.ones(1).record_use(event)


def test_of_uses_up_to_events_of_one_stream_the_last_counts() -> None:
    """A buffer that every step sends on a stream of its own must not keep an event of each."""
    with torch.virtual(devices=1):
        side = torch.cuda.Stream()
        x = torch.ones(4 * MIB, device="cuda")
        ptr, block = x.memory.ptr, x.memory.block
        events = []
        for nanoseconds in (0, 10**9):
            with torch.cuda.stream(side):
                torch.cuda._sleep(nanoseconds)
            events.append(side.record_event())
        for event in (*events, *[side.record_event() for _ in range(100)], *events):
            x.record_use(event)
        assert block is not None and len(block.uses) == 1
        del x
        events[0].synchronize()
        assert not side.query()
        other = torch.ones(4 * MIB, device="cuda")
        assert other.memory.ptr != ptr
        side.synchronize()
        assert torch.ones(4 * MIB, device="cuda").memory.ptr == ptr
