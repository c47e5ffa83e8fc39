"""The race detector and collectives: what a `work.wait()` orders, and what is found where it is missing."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.dtype import float32
from flambeau.driver.protocol import Collective
from flambeau.driver.virtual import VirtualDriver
from flambeau.observe.detector import Detector
from flambeau.observe.races import RaceDriver
from flambeau.runtime import system
from flambeau.testing.ranks import ranks

HERE = "test_collectives_races.py"


def certificate(body, n, *args, **given):
    with torch.virtual(n, races="warn", **given):
        ranks(body, n, *args)
        return system.accelerator().detector.certificate()


def bucket(missing=None):
    """What a reducer does with a bucket of gradients, three times."""
    dist.init_process_group("nccl")
    weight = torch.ones(64, device="cuda")
    dist.broadcast(weight, 0)
    for _ in range(3):
        gradient = weight * (dist.get_rank() + 1)
        flat = torch.empty(64, device="cuda")
        flat.copy_(gradient)
        work = dist.all_reduce(flat, async_op=True)
        other = weight * 2  # beside the reduction
        if missing == "write":
            flat.zero_()
        if missing != "wait":
            work.wait()
        weight = weight - 0.1 * flat - 0 * other
    torch.cuda.synchronize()
    dist.destroy_process_group()


@pytest.mark.parametrize("schedule", ["earliest", "random:3"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_program_that_waits_is_certified(n, schedule):
    found = certificate(bucket, n, schedule=schedule)
    assert found.race_free, str(found)
    assert any("ranks meet in collectives and in the store alone" in text for text in found.assumptions) == (
        n > 1
    )


def test_a_missing_wait_is_a_race_with_its_fix():
    found = certificate(bucket, 2, "wait")
    assert found.races and not found.race_free
    race = found.races[0]
    assert race.first.operator == "all_reduce" and race.first.kind == "writes"
    begun = bucket.__code__.co_firstlineno + 9
    assert f"{HERE}:{begun}" in race.first.place and f"{HERE}:{begun + 6}" in race.second.place
    assert race.fix.call == "wait" and race.fix.lines == ("work.wait()",) and race.fix.verified


def two_works():
    """Only the first of two is waited for."""
    dist.init_process_group("nccl")
    x, y = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
    works = [dist.all_reduce(t, async_op=True) for t in (x, y)]
    works[0].wait()
    y += 1


def test_a_wait_for_an_earlier_work_is_named_as_such():
    race = certificate(two_works, 2).races[0]
    line = two_works.__code__.co_firstlineno
    assert race.second.place.endswith(f"{HERE}:{line + 6}")
    assert race.note.endswith(f"{HERE}:{line + 5} is for an earlier work.")


def test_a_bucket_that_is_written_before_its_reduction_is_over():
    found = certificate(bucket, 2, "write")
    assert {race.second.operator for race in found.races} == {"fill"}


def side_streams(missing):
    """A collective on a stream of the program's, and one on the group's that needs what a side stream writes."""
    dist.init_process_group("nccl")
    side, x = torch.cuda.Stream(), torch.ones(64, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(x)
    if missing != "after":
        torch.cuda.current_stream().wait_stream(side)
    x += 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    if missing != "before":
        torch.cuda.current_stream().wait_stream(side)
    dist.all_reduce(x, async_op=True).wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def test_a_fix_names_calls_that_the_program_can_make():
    assert certificate(side_streams, 2, "").race_free
    line = side_streams.__code__.co_firstlineno
    race = certificate(side_streams, 2, "after").races[0]
    assert race.fix.lines == ("torch.cuda.current_stream().wait_stream(side)",)
    race = certificate(side_streams, 2, "before").races[0]
    at = f"{HERE}:{line + 15}"
    assert race.fix.where == f"Before tests/distributed/collectives/{at} insert"
    assert race.fix.lines == ("torch.cuda.current_stream().wait_stream(side)",)
    assert race.second.stream.startswith("group stream 2 of cuda:")


def test_race_errors_end_the_ranks():
    with torch.virtual(2, races="error"), pytest.raises(torch.RaceError, match="all_reduce"):
        ranks(bucket, 2, "wait")


def dropped():
    """The program lets go of a tensor that a collective still uses, and asks for as much memory again."""
    dist.init_process_group("nccl")
    for _ in range(4):
        dist.all_reduce(torch.ones(1 << 18, device="cuda"), async_op=True)
        torch.ones(1 << 18, device="cuda").add_(1)
    torch.cuda.synchronize()


def test_a_tensor_that_is_dropped_is_not_handed_out_again_before_its_collective_is_over():
    found = certificate(dropped, 2)
    assert not found.races, str(found)


def test_without_the_note_of_its_use_it_is(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "record_use", lambda tensor, event: None)
    found = certificate(dropped, 2)
    assert any(race.reused for race in found.races) or found.violated


def callbacks():
    dist.init_process_group("nccl")
    flat = torch.ones(64, device="cuda")
    future = (
        dist.all_reduce(flat, async_op=True)
        .get_future()
        .then(lambda f: f.value()[0].div_(dist.get_world_size()))
    )
    future.wait()
    return flat.tolist()


def test_callbacks_of_a_future_come_after_its_collective_and_before_its_wait():
    found = certificate(callbacks, 2)
    assert found.race_free, str(found)
    assert ranks(callbacks, 2) == [[1.0] * 64] * 2


def sent():
    dist.init_process_group("nccl")
    rank, t = dist.get_rank(), torch.ones(64, device="cuda")
    if rank == 0:
        work = dist.isend(t, 1)
        work.wait()
        t.add_(1)
    else:
        dist.recv(t, 0)
        t.add_(1)
    torch.cuda.synchronize()


def test_messages_are_ordered_for_both():
    assert certificate(sent, 2).race_free


def mine_alone(rank_that_errs):
    """One rank forgets a wait; the other waits on the host for everything."""
    dist.init_process_group("nccl")
    t, side = torch.ones(64, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):  # without waiting for the current stream, which fills it
        if dist.get_rank() == rank_that_errs:
            u = t + 1
        else:
            torch.cuda.synchronize()
            u = t + 1
    torch.cuda.current_stream().wait_stream(side)
    dist.all_reduce(u)
    torch.cuda.synchronize()


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_has_waited_for_the_other_does_not_know(rank):
    found = certificate(mine_alone, 2, rank)
    assert {race.device for race in found.races} == {f"cuda:{rank}"}


# -- the driver's calls: one thread, two devices that reach each other ---------------------------------------------


class Pair:
    """Two devices behind a detector, in a communicator; each has memory that its own stream has filled."""

    def __init__(self):
        inner = VirtualDriver(2)
        self.driver = RaceDriver(inner, Detector("warn"))
        self.comms = self.driver.comm_create(self.driver.comm_id(), 2, [(0, 0), (1, 1)])
        self.streams = [self.driver.stream_create(index, 0) for index in (0, 1)]
        self.token, self.data = ([self.driver.mem_alloc(index, 512) for index in (0, 1)] for _ in range(2))
        for ptrs in (self.token, self.data):
            for index in (0, 1):
                self.driver.fill(ptrs[index], index, 512, self.streams[index])

    def run(self, *calls):
        self.driver.collective(
            [(comm, call, stream) for comm, call, stream in zip(self.comms, calls, self.streams, strict=True)]
        )

    def reads_the_others(self, index):
        """The stream of one device reads the other's memory; whether that is a race."""
        before = len(self.driver.detector.races)
        self.driver.copy(self.token[index], self.data[1 - index], 512, self.streams[index])
        return len(self.driver.detector.races) > before


def part(kind, pair, index, **more):
    return Collective(kind, pair.token[index], pair.token[index], 8, float32, **more)


def test_an_all_reduce_orders_all_after_all():
    pair = Pair()
    pair.run(*[part("all_reduce", pair, index) for index in (0, 1)])
    assert [pair.reads_the_others(index) for index in (0, 1)] == [False, False]


def test_nothing_is_ordered_without_one():
    pair = Pair()
    assert [pair.reads_the_others(index) for index in (0, 1)] == [True, True]


@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_orders_all_after_the_root_alone(root):
    pair = Pair()
    pair.run(*[part("broadcast", pair, index, peer=root) for index in (0, 1)])
    assert pair.reads_the_others(1 - root) is False
    assert pair.reads_the_others(root) is True


@pytest.mark.parametrize("root", [0, 1])
def test_a_reduction_orders_the_root_alone_after_all(root):
    pair = Pair()
    pair.run(*[part("reduce", pair, index, peer=root) for index in (0, 1)])
    assert pair.reads_the_others(root) is False
    assert pair.reads_the_others(1 - root) is True


def test_a_message_orders_the_receiver_after_the_sender():
    pair = Pair()
    pair.run(
        Collective("send", 0, pair.token[0], 8, float32, peer=1),
        Collective("recv", pair.token[1], 0, 8, float32, peer=0),
    )
    assert pair.reads_the_others(1) is False
    assert pair.reads_the_others(0) is True


def test_a_member_that_was_queued_first_learns_of_the_others():
    pair = Pair()
    for index in (0, 1):
        pair.driver.collective([(pair.comms[index], part("all_reduce", pair, index), pair.streams[index])])
    assert [pair.reads_the_others(index) for index in (0, 1)] == [False, False]


# -- what the host itself does -----------------------------------------------------------------------------------


def fetched(use, wait):
    """A pinned tensor that a copy fills; `use` is given it, with or without a wait."""

    def body():
        dist.init_process_group("gloo")
        x = torch.full((64,), 3.0, device="cuda")
        p = torch.empty(64).pin_memory()
        p.copy_(x, non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        use(p)

    return body


@pytest.mark.parametrize(
    "use",
    [
        dist.all_reduce,
        lambda p: dist.broadcast(p, 0),
        lambda p: dist.all_gather_single(torch.empty(64), p),
        lambda p: dist.all_gather_single(p, torch.empty(64)),
        lambda p: p.share_memory_(),
        lambda p: np.from_dlpack(p),
    ],
    ids=["all_reduce", "broadcast", "gathered", "gathers", "share_memory_", "from_dlpack"],
)
def test_the_host_reads_or_writes_what_a_copy_still_fills(use):
    races = certificate(fetched(use, wait=False), 1).races
    assert races
    assert all("pinned host memory" in str(race) for race in races)
    assert certificate(fetched(use, wait=True), 1).race_free


def test_a_capsule_of_what_a_copy_still_fills_withholds_the_certificate():
    """Whether another library has read the memory of an unconsumed capsule is not visible."""
    found = certificate(fetched(lambda p: p.__dlpack__(), wait=False), 1)
    assert not found.races and not found.race_free
    assert "the tensor of __dlpack__()" in str(found)
    assert certificate(fetched(lambda p: p.__dlpack__(), wait=True), 1).race_free
