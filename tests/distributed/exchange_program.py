"""Each rank's part of the tests of virtual GPUs in several processes. The first argument says which."""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from datetime import timedelta

import flambeau as torch
import flambeau.distributed as dist
from flambeau.runtime import system

RANK = int(os.environ["RANK"])


def say(*words: object) -> None:
    """One write: ranks share a pipe."""
    print(" ".join(map(str, words)) + "\n", end="", flush=True)


def collectives() -> None:
    """Every collective beside what it must give; then when the simulated device was done."""
    size = dist.get_world_size()
    x = torch.arange(6.0, device="cuda") + RANK
    dist.all_reduce(x)
    assert x.tolist() == [size * i + sum(range(size)) for i in range(6)]
    out = torch.zeros(size * 2, device="cuda", dtype=torch.int64)
    dist.all_gather_single(out, torch.full((2,), RANK, device="cuda"))
    assert out.tolist() == [r for r in range(size) for _ in range(2)]
    part = torch.zeros(2, device="cuda")
    dist.reduce_scatter_single(part, torch.ones(2 * size, device="cuda") * (RANK + 1))
    assert part.tolist() == [sum(range(1, size + 1))] * 2
    y = torch.full((3,), float(RANK), device="cuda", dtype=torch.bfloat16)
    dist.broadcast(y, size - 1)
    assert y.tolist() == [size - 1.0] * 3
    dist.reduce(y, 0, dist.ReduceOp.MAX)
    found = torch.zeros(4, device="cuda")
    ops = [
        dist.P2POp(dist.isend, torch.full((4,), float(RANK), device="cuda"), (RANK + 1) % size),
        dist.P2POp(dist.irecv, found, (RANK - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert found.tolist() == [float((RANK - 1) % size)] * 4
    outs = [torch.zeros(1, device="cuda") for _ in range(size)]
    dist.all_to_all(outs, [torch.full((1,), 10.0 * RANK + r, device="cuda") for r in range(size)])
    assert [o.item() for o in outs] == [10.0 * r + RANK for r in range(size)]
    group = dist.new_group([0, size - 1])
    if RANK in (0, size - 1):
        z = torch.ones(3, device="cuda")
        dist.all_reduce(z, group=group)
        assert z.tolist() == [2.0] * 3
    dist.barrier(device_ids=[torch.cuda.current_device()])


def barrier_before_any_collective() -> None:
    _barriers(before=True, index=RANK)


def barrier_after_a_collective() -> None:
    _barriers(before=False, index=2 - RANK)


def _barriers(before: bool, index: int) -> None:
    """Barriers that name no device, beside a collective on a device that is not the current one."""
    warnings.simplefilter("ignore", UserWarning)
    torch.cuda.set_device(0)
    if before:
        dist.barrier()
    dist.all_reduce(torch.ones(3, device=f"cuda:{index}"))
    dist.barrier()
    say("devices", *[index for index, _ in dist.group.WORLD.backend_of("cuda")._lines])


def sends_before_the_host_waits() -> None:
    """Rank 1 waits for what rank 0's GPU has been given, while rank 0 waits elsewhere for rank 1."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for number in range(2):
        x = torch.full((1,), 4.0, device="cuda")
        if RANK == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
            dist.send(x + 1, 1)
        else:
            dist.recv(x, 0)
            dist.send(2 * x + 1, 0)
            dist.recv(x, 0)
            say("got", x.item())
        if number:
            dist.all_reduce(x)  # the first: it makes the communicator
        elif RANK:
            store.set("got", "it")
        else:
            store.get("got")
    dist.barrier(device_ids=[torch.cuda.current_device()])


def hosts_that_wait_in_mpi() -> None:
    """All but rank 0 wait for CPU tensors, which it comes to when it has seen what all GPUs were given."""
    cpu = dist.new_group(backend="gloo")
    x = torch.full((2,), RANK + 1.0, device="cuda")
    for _ in range(3):
        dist.all_reduce(x)
        if RANK == 0:
            assert x.unique().numel() == 1
        counted = torch.ones(1)
        dist.all_reduce(counted, group=cpu)
        x += counted.to("cuda")
    say("got", *x.tolist(), system.bare_driver().trace_hash(), system.bare_driver().time_ns())


def hosts_that_ask_mpi() -> None:
    """The same of ranks that ask whether the CPU's work is done, until it is."""
    cpu = dist.new_group(backend="gloo")
    x = torch.full((2,), RANK + 1.0, device="cuda")
    for _ in range(3):
        dist.all_reduce(x)
        dist.all_reduce(x)
        if RANK == 0:
            assert x.unique().numel() == 1
        counted = torch.ones(1)
        work = dist.all_reduce(counted, group=cpu, async_op=True)
        while not work.is_completed():
            pass
        x += counted.to("cuda")
    say("got", *x.tolist(), system.bare_driver().trace_hash(), system.bare_driver().time_ns())


def circle_through_mpi() -> None:
    """Rank 0 waits for the others' GPUs, they for its CPU tensors."""
    cpu = dist.new_group(backend="gloo")
    x = torch.ones(2, device="cuda")
    if RANK == 0:
        dist.all_reduce(x)
        say(x.tolist())
    dist.all_reduce(torch.ones(1), group=cpu)
    dist.all_reduce(x)


def ring() -> None:
    size = dist.get_world_size()
    x = torch.ones(2, device="cuda")
    dist.recv(x, (RANK - 1) % size)
    dist.send(x, (RANK + 1) % size)


def repeats() -> None:
    """Ranks of changing speed, groups that overlap, polls: what each device did, and when."""
    dice = random.Random()  # the machine's own
    first, second = dist.new_group([0, 1]), dist.new_group([0, 2])
    side, polls = torch.cuda.Stream(), []
    for _ in range(3):
        time.sleep(dice.random() * 0.02)
        x = torch.randn(1000 * (RANK + 1), device="cuda")
        y = torch.ones(50_000, device="cuda") * (x @ x)
        work = dist.all_reduce(y, async_op=True)
        if RANK < 2:
            dist.all_reduce(torch.ones(100, device="cuda"), group=first, async_op=True)
        if RANK != 1:
            dist.all_reduce(torch.ones(3000, device="cuda"), group=second, async_op=True)
        with torch.cuda.stream(side):
            torch.ones(10_000, device="cuda").cumsum(0)
        time.sleep(dice.random() * 0.02)
        polls.append(0)
        while not work.is_completed():
            polls[-1] += 1
            time.sleep(dice.random() * 0.001)
        work.wait()
        say(RANK, y[0].item())
    torch.cuda.synchronize()
    say(RANK, polls, system.bare_driver().trace_hash(), system.bare_driver().time_ns())


def polls_for_what_comes_later() -> None:
    """Rank 0 polls for a collective that rank 1 comes to only when rank 0 has polled: nobody may hang."""
    store = dist.distributed_c10d._get_default_group().get_group_store()
    x = torch.ones(3, device="cuda")
    if RANK == 0:
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
        store.set("polled", "1")
        while not work.is_completed():
            pass
        work.wait()
    else:
        store.get("polled")
        dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3


def first_is_done_first() -> None:
    """Rank 0 comes to its end long before the others do; what it has queued is waited for by nobody but them."""
    x = torch.ones(3, device="cuda")
    dist.all_reduce(x, async_op=True)
    if RANK > 0:
        time.sleep(0.3)
        torch.cuda.synchronize()
        assert x.tolist() == [float(dist.get_world_size())] * 3


def mismatch() -> None:
    x = torch.ones(1024, device="cuda")
    if RANK == 0:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, 0)
    torch.cuda.synchronize()


def mismatch_beside_another_group() -> None:
    """What the ranks are told of together: one call in which they differ, one of another group in which they do not."""
    other = dist.new_group([0, 1])
    x, y = torch.ones(1024, device="cuda"), torch.ones(3, device="cuda")
    if RANK == 0:
        dist.all_reduce(x, async_op=True)
    else:
        dist.broadcast(x, 0, async_op=True)
    dist.all_reduce(y, group=other, async_op=True)
    for _ in range(2):
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            say(str(error).splitlines()[0])


def never_comes() -> None:
    if RANK == 0:
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()


def first_never_comes() -> None:
    """Nor has rank 1 ever needed another."""
    if RANK == 0:
        try:
            dist.all_reduce(torch.ones(4, device="cuda"))
        except dist.DistBackendError as error:
            say(error)


def first_gives_up() -> None:
    """Its message is in another group than its receipt. Rank 0 is told so, and ends without having come to rank 1's."""
    groups = [dist.new_group([0, 1], timeout=timedelta(seconds=100)) for _ in range(2)]
    try:
        (dist.recv if RANK else dist.send)(torch.ones(4, device="cuda"), 1 - RANK, group=groups[RANK])
    except dist.DistBackendError as error:
        say(error)


def first_is_late() -> None:
    store = dist.distributed_c10d._get_default_group().get_group_store()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.2))
    if RANK == 0:
        store.wait(["enough"])
    else:
        try:
            dist.all_reduce(torch.ones(4, device="cuda"), group=group)
        except dist.DistBackendError as error:
            say(error)
        store.set("enough", "")


def dies() -> None:
    if RANK == 1:
        os._exit(9)
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()


def waits_in_a_circle() -> None:
    """Rank 0 waits for rank 1's collective, rank 1 for a key of the store that rank 0 would set afterwards."""
    store = dist.distributed_c10d._get_default_group().get_group_store()
    if RANK == 0:
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        store.set("afterwards", "1")
    else:
        store.get("afterwards")


def one_device() -> None:
    """Two ranks on one device of 40 GB: what both hold is limited together; one communicator cannot have both."""
    torch.cuda.set_device(0)
    store = dist.distributed_c10d._get_default_group().get_group_store()
    if RANK == 0:
        held = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
        store.set("held", "1")
        store.get("tried")
        assert held.numel() == 30 << 30
        del held
        torch.cuda.empty_cache()
        store.set("given", "1")
        store.get("had")
    else:
        store.get("held")
        try:
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            say(error)
        store.set("tried", "1")
        store.get("given")
        torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        store.set("had", "1")
    try:
        dist.all_reduce(torch.ones(1, device="cuda:0"))
    except dist.DistBackendError as error:
        say(error)


def begins_again() -> None:
    """Groups of the same ranks, one after the other, in a store that outlives them."""
    for number in range(10):
        dist.destroy_process_group()
        dist.init_process_group("cpu:gloo,cuda:nccl")
        for where in ("cpu", "cuda"):
            x = torch.full((2,), float(number + RANK), device=where)
            dist.all_reduce(x)
            assert x.tolist() == [2.0 * number + 1] * 2
        near = dist.new_group([0, 1], use_local_synchronization=True)
        dist.broadcast(x, 0, near)
        dist.destroy_process_group(near)


if __name__ == "__main__":
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl")
    warm = torch.ones(1, device="cuda")
    if sys.argv[1] not in ("one_device", "first_never_comes") and "barrier" not in sys.argv[1]:
        dist.all_reduce(warm)
        torch.cuda.synchronize()
    globals()[sys.argv[1]]()
    say(f"rank {RANK} is through")
