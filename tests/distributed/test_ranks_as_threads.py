"""`testing.ranks`: ranks that are threads and take turns: what they see, and that every run repeats and is explored."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from datetime import timedelta

import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.errors import DriverError
from flambeau.driver.protocol import Collective
from flambeau.runtime import system
from flambeau.testing.explore import explore
from flambeau.testing.ranks import ranks


def seen():
    dist.init_process_group()
    return dist.get_rank(), dist.get_world_size(), torch.cuda.current_device(), dist.get_node_local_rank()


def test_each_rank_has_a_device_and_an_environment_of_its_own():
    before = dict(os.environ)
    assert ranks(seen, 3) == [(r, 3, r, r) for r in range(3)]
    assert dict(os.environ) == before
    assert not dist.is_initialized()


def test_results_and_arguments():
    assert ranks(lambda a, b: (a + b, threading.current_thread().name), 2, 1, 2) == [
        (3, "rank 0"),
        (3, "rank 1"),
    ]


@pytest.mark.parametrize("n", [0, -1])
def test_there_must_be_a_rank(n):
    with pytest.raises(ValueError, match=f"at least one, not {n}"):
        ranks(seen, n)


def test_gpus_that_are_open_are_used_and_others_are_made():
    with torch.virtual(2, races="warn") as machine:
        assert ranks(system.bare_driver, 2) == [machine.driver] * 2
        assert machine.driver not in ranks(system.bare_driver, 3)
        assert machine.driver not in ranks(system.bare_driver, 2, schedule="random:1")
        assert system.bare_driver() is machine.driver


@pytest.mark.parametrize("status", [0, None, False])
def test_a_rank_that_exits_has_ended(status):
    """As `sys.exit` of a process of its own: it neither ends the program nor hides who waits for the rank."""

    def body():
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            sys.exit(status)
        return dist.get_rank()

    assert ranks(body, 3) == [0, None, 2]

    def waiting():
        body()
        dist.barrier()

    with pytest.raises(DriverError, match=r"(?s)rank 0 at .*waits for rank.* 1.*rank 1 has ended"):
        ranks(waiting, 3)


@pytest.mark.parametrize("status", [3, "no such file"])
def test_a_rank_that_exits_with_a_status_has_failed(status):
    def body():
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            sys.exit(status)
        dist.barrier()

    with pytest.raises(RuntimeError, match=re.escape(f"rank 1 has ended by sys.exit({status!r})")):
        ranks(body, 2)


def step():
    """Work of several streams, collectives, a wait on the host between them."""
    dist.init_process_group("nccl")
    t = torch.ones(1000, device="cuda") * dist.get_rank()
    works = [dist.all_reduce(t * i, async_op=True) for i in range(3)]
    for work in works:
        work.wait()
    total = sum([work.result()[0].sum() for work in works]).item()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    return total, system.bare_driver().time_ns()


def run(order, schedule):
    with torch.virtual(3, schedule=schedule) as machine:
        results = ranks(step, 3, order=order)
        return results, machine.driver.trace_hash(), machine.driver.token()


@pytest.mark.parametrize("schedule", ["earliest", "random:5"])
@pytest.mark.parametrize("order", [None, 0, 1])
def test_a_run_repeats_to_the_bit_and_to_the_nanosecond(order, schedule):
    first = run(order, schedule)
    assert first == run(order, schedule)
    assert [total for total, _ in first[0]] == [9000.0] * 3


def test_a_token_repeats_a_run():
    results, trace, token = run(None, "random:7")
    assert run(None, f"replay:{token}") == (results, trace, token)


def busy():
    """Rank 0's host gives much more than rank 1's."""
    dist.init_process_group("nccl")
    t = torch.ones(10, device="cuda")
    begin = system.bare_driver().time_ns()
    for _ in range(500 if dist.get_rank() == 0 else 1):
        t.add_(1)
    return system.bare_driver().time_ns() - begin


def test_no_rank_pays_for_the_calls_of_another():
    slow, fast = ranks(busy, 2)
    assert slow > 100 * fast > 0


def hidden(wait):
    """What ranks 0 and 1 each compute from a tensor that is being reduced."""
    dist.init_process_group("nccl")
    t = torch.full((8,), float(dist.get_rank() + 1), device="cuda")
    torch.cuda.synchronize()
    work = dist.all_reduce(t, async_op=True)
    if wait:
        work.wait()
    u = t * 2
    torch.cuda.synchronize()
    return u.cpu()


def doubled(wait):
    return torch.stack(ranks(hidden, 2, wait))


def test_exploring_finds_every_outcome_of_a_missing_wait():
    found = explore(lambda: doubled(False), 40)
    assert (found.pairs, found.orders, found.outcomes) == (2, 4, 4) and found.complete and found.races
    assert explore(lambda: doubled(True), 40).complete


def test_random_schedules_reach_every_outcome_too():
    outcomes = {
        str([u[0].item() for u in ranks(hidden, 2, False, schedule=f"random:{seed}")]) for seed in range(30)
    }
    assert outcomes == {"[2.0, 4.0]", "[2.0, 6.0]", "[6.0, 4.0]", "[6.0, 6.0]"}


def test_without_data_times_are_the_same():
    def body():
        dist.init_process_group("nccl")
        t = torch.ones(1 << 20, device="cuda")
        for _ in range(3):
            dist.all_reduce(t)
        torch.cuda.synchronize()
        return system.bare_driver().time_ns()

    assert ranks(body, 2, data=False) == ranks(body, 2)


def captured():
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    dist.all_reduce(t)
    with (
        pytest.raises(RuntimeError, match="capture no collectives"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        dist.all_reduce(t)
    dist.all_reduce(t)
    return t.tolist()


def test_a_collective_is_not_captured():
    assert ranks(captured, 2) == [[4.0] * 4] * 2


H100 = (360e9, 3400, 8400)  # bytes a second of a ring, ns of a hop and of a start, in NCCL's protocol Simple


@pytest.mark.parametrize("n", [2, 4])
def test_times_are_those_of_the_ring(n):
    nbytes = 64 << 20
    rate, hop, start = H100

    def body():
        dist.init_process_group("nccl")
        t = torch.ones(nbytes // 4, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.all_reduce(t)
        begin.record()
        dist.all_reduce(t)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e6

    ring = 2 * (n - 1) * hop + 2 * (n - 1) / n * nbytes / rate * 1e9
    for took in ranks(body, n, profile="h100"):
        assert took == pytest.approx(start + ring, rel=1e-3)


def threads_alone():
    """Two threads without a baton: each drives a member, as a program of its own might."""
    driver = system.bare_driver()
    unique, results = driver.comm_id(), {}

    def body(rank):
        t = torch.full((4,), float(rank + 1), device=f"cuda:{rank}")
        (comm,) = driver.comm_create(unique, 2, [(rank, rank)])
        stream = driver.stream_default(rank)
        call = Collective("all_reduce", t.ptr, t.ptr, 4, torch.float32)
        driver.collective([(comm, call, stream)])
        results[rank] = t.tolist()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_take_no_turns_meet_too():
    with torch.virtual(2):
        assert threads_alone() == {0: [3.0] * 4, 1: [3.0] * 4}


def test_a_member_that_nobody_brings():
    with torch.virtual(2):
        torch.cuda.init()
        driver = system.bare_driver()
        comms = driver.comm_create(driver.comm_id(), 2, [(0, 0), (1, 1)])
        t = torch.ones(4, device="cuda:0")
        call = Collective("all_reduce", t.ptr, t.ptr, 4, torch.float32)
        driver.collective([(comms[0], call, driver.stream_default(0))])
        with pytest.raises(
            torch.DriverError, match=r"(?s)deadlock: the host waits.*waits for rank 1 \(cuda:1\)"
        ):
            torch.cuda.synchronize(0)


def draws():
    """Who goes on first after a wait hangs on the schedule: what is drawn must not."""
    dist.init_process_group("nccl")
    mine = dist.get_rank()
    t, side, drawn = torch.ones(10, device="cuda"), torch.cuda.Stream(), []
    dist.all_reduce(t)
    for i in range(4):
        with torch.cuda.stream(side):
            torch.ones(10, device="cuda")
        if i % 2 == mine:
            torch.cuda.current_stream().wait_stream(side)
        t.sum().item()
        if i == 2:
            torch.manual_seed(mine)
        drawn.append((torch.rand(3).tolist(), torch.rand(3, device="cuda").tolist()))
    return drawn


def test_each_rank_draws_random_numbers_of_its_own():
    """Found by the hunt: the ranks shared the CPU's generator, and a certified program gave ten results."""
    torch.manual_seed(3)
    first, second = ranks(draws, 2)
    assert first[:2] == second[:2], "both begin where the program was"
    assert first[2] != second[2]
    for seed, drawn in enumerate((first, second)):
        torch.manual_seed(seed)
        assert drawn[2][0] == torch.rand(3).tolist(), "a seed is the rank's own"
    for schedule in ["random:0", "random:1", "random:2", "adversarial:0"]:
        torch.manual_seed(3)
        assert ranks(draws, 2, schedule=schedule) == [first, second]
        assert torch.initial_seed() == 3
        after = torch.rand(3)
        torch.manual_seed(3)
        assert torch.equal(torch.rand(3), after), "whoever starts ranks draws as if there were none"


def waits_with_limits(backend):
    """Rank 0 asks in vain, with limits; rank 1 is there all the time, and rank 2 waits longer."""
    dist.init_process_group(backend)
    store, rank = dist.group.WORLD.get_group_store(), dist.get_rank()
    texts = []
    waits = (
        [
            lambda: store.wait(["never"], timedelta(seconds=1)),
            lambda: store.wait(["nor"], timedelta(seconds=2)),
        ],
        [],
        [lambda: store.wait(["late"], timedelta(seconds=3))],
    )[rank]
    for wait in waits:
        with pytest.raises(dist.DistStoreError) as caught:
            wait()
        texts.append(str(caught.value))
        if rank == 0 and len(texts) == 2:
            store.wait(["2 is through"])
    if rank == 2:
        store.set("2 is through", "")
    t = torch.ones(2, device="cuda" if backend == "nccl" else "cpu")
    dist.all_reduce(t)
    return texts, t.tolist()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("order", [None, 1, 2])
def test_a_wait_with_a_limit_gives_up_where_nobody_can_go_on(backend, order):
    """Those that wait for it with none were told of a deadlock."""
    (first, _), (_, _), (last, _) = results = ranks(waits_with_limits, 3, backend, order=order)
    assert [values for _, values in results] == [[3.0, 3.0]] * 3
    assert [text.partition(":")[0] for text in (*first, *last)] == [
        f"wait timeout after {seconds}000 ms" for seconds in (1, 2, 3)
    ]
    assert "rank 0 at " in first[0] and "waits for 'default_pg/1/0/never' of a store" in first[0]


def a_work_with_a_limit():
    dist.init_process_group("gloo")
    rank, t = dist.get_rank(), torch.ones(2)
    if rank == 0:
        with pytest.raises(RuntimeError, match="recv of 2 float32 from rank 1"):
            dist.irecv(t.clone(), 1).wait(timedelta(seconds=1))
    dist.all_reduce(t)
    return t.tolist()


def test_a_work_with_a_limit_gives_up_before_those_without():
    assert ranks(a_work_with_a_limit, 2) == [[2.0, 2.0]] * 2


def barrier_after(body, device_id=None):
    """Return the devices of this rank's communicators, in the order in which they were created."""
    rank = torch.cuda.current_device()
    torch.cuda.set_device(0)  # as in processes
    dist.init_process_group("nccl", device_id=None if device_id is None else device_id(rank))
    body(rank)
    return [index for index, _ in dist.group.WORLD.backend_of("cuda")._lines]


def on_four_devices(*args):
    """Return what each rank returns, and how many warnings of barriers there were."""
    with torch.virtual(4), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = ranks(barrier_after, 2, *args)
    return found, len([w for w in seen if str(w.message).startswith("barrier(): using the device")])


def reduce_on(index):
    dist.all_reduce(torch.ones(3, device=f"cuda:{index}"))


def two_devices(rank):
    reduce_on(3 - rank)
    reduce_on(rank)
    dist.barrier()


def message_first(rank):
    """A message on one device, collectives on another."""
    (dist.send if rank == 0 else dist.recv)(torch.ones(3, device=f"cuda:{rank + 2}"), 1 - rank)
    reduce_on(rank)
    dist.barrier()


BARRIERS = {  # barriers -> devices of rank 0 and of rank 1, number of rank 0's warnings
    "used": (lambda rank: (reduce_on(1 + rank), dist.barrier()), [[1], [2]], 1),
    "the group's own method": (lambda rank: (reduce_on(1 + rank), dist.group.WORLD.barrier().wait()), [[1], [2]], 1),
    "asynchronous": (lambda rank: (reduce_on(1 + rank), dist.barrier(async_op=True).wait()), [[1], [2]], 1),
    "the first of two": (two_devices, [[3, 0], [2, 1]], 1),
    "messages do not count beside collectives": (message_first, [[2, 0], [3, 1]], 1),
    "nothing used": (lambda rank: dist.barrier(), [[0], [1]], 1),
    "named": (lambda rank: (reduce_on(1 + rank), dist.barrier(device_ids=[2 + rank])), [[1, 2], [2, 3]], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", BARRIERS)
def test_a_barrier_uses_the_device_of_the_groups_collectives(name, caplog):
    body, devices, warned = BARRIERS[name]
    assert on_four_devices(body) == (devices, warned)
    guessed = [r.getMessage() for r in caplog.records if "currently unknown" in r.getMessage()]
    assert len(guessed) == (2 if name == "nothing used" else 0)


def test_a_barrier_uses_the_bound_device_without_a_warning():
    assert on_four_devices(lambda rank: dist.barrier(), lambda rank: 3 - rank) == ([[3], [2]], 0)


def test_barriers_of_groups_use_each_groups_own_device():
    def body(rank):
        pair = dist.new_group([0, 1])
        reduce_on(2 + rank)
        dist.all_reduce(torch.ones(3, device=f"cuda:{rank}"), group=pair)
        dist.barrier(pair), dist.barrier()
        assert [index for index, _ in pair.backend_of("cuda")._lines] == [rank]

    assert on_four_devices(body) == ([[2], [3]], 2)
